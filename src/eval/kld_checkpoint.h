// Finished chunks of a comparison of KV types in a file, for a run that goes on where one ended.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/env.h"
#include "base/result.h"
#include "eval/kld_figures.h"

namespace kvasir::eval {

/// What a chunk's values depend on, as names and values that a message can show.
using KldSettings = std::vector<std::pair<std::string, std::string>>;

/// What every chunk has.
struct KldShape {
  std::size_t n_candidates = 0;
  std::int64_t n_scored = 0;
};

/// JSON Lines: the settings, then a line for each chunk with the values of every token (some 13
/// bytes each, floats to 9 digits: exact). Each save writes the whole file anew, so a reader sees
/// whole lines; a last line that is torn all the same, by a copy that ended early, counts as not
/// there.
class KldCheckpoint {
 public:
  /// What `path` holds; a file that does not exist or is empty holds nothing, and is begun.
  /// Errors: kInvalidArgument (no such checkpoint, one of other settings: it is left alone),
  /// kCorruption (a damaged line before the last), kExhausted (above 1 GiB), kIo.
  static Result<KldCheckpoint> open(Env& env, std::string path, const KldSettings& settings,
                                    const KldShape& shape);

  /// Null: not done.
  const KldChunk* find(int text_idx, int chunk_idx) const;
  /// Errors: kIo.
  Status save(const KldChunk& chunk);

 private:
  KldCheckpoint(Env& env, std::string path) : env_(&env), path_(std::move(path)) {}
  Status read(const std::string& text, const KldSettings& settings, const KldShape& shape);

  Status write() const;

  Env* env_;
  std::string path_;
  std::string text_;                                ///< whole lines
  std::map<std::pair<int, int>, KldChunk> chunks_;  ///< by text and chunk
};

}  // namespace kvasir::eval
