// The tokens of a list of sources, concatenated, and their cut into samples of `sequence_length`.
//
// Byte tokens: each byte of a TEXT file is a token, 0 to 255. Sample i holds tokens [i*S, i*S + S); the label of a
// position is the next token, -100 at the very end of the corpus. A tail shorter than S is left out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/trainer/config/job.h"

namespace mp::trainer {

class Corpus {
 public:
  // `field` names the sources in errors ("data.train"). Throws TrainerError: kMissingFile or kBadData.
  Corpus(const std::vector<DataSourceConfig>& sources, int64_t sequence_length, int64_t vocab_size,
         const std::string& field);

  int64_t samples() const { return static_cast<int64_t>(tokens_.size()) / sequence_length_; }
  int64_t sequence_length() const { return sequence_length_; }
  // Of tokens and sequence length.
  uint64_t fingerprint() const { return fingerprint_; }
  // Writes `sequence_length` values to each of the two.
  void Sample(int64_t index, int64_t* input_ids, int64_t* labels) const;

 private:
  int64_t sequence_length_;
  std::string tokens_;
  uint64_t fingerprint_ = 0;
};

}  // namespace mp::trainer
