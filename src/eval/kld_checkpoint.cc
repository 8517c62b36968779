#include "eval/kld_checkpoint.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

namespace kvasir::eval {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kFileBytesMax = std::uint64_t{1} << 30;
/// The first key of the first line; its value is the version.
constexpr const char* kMark = "kvasir_eval_kld";

std::string settings_line(const KldSettings& settings) {
  Json line = {{kMark, 1}};
  for (const auto& [name, value] : settings) line[name] = value;
  return line.dump(-1, ' ', true, Json::error_handler_t::replace) + "\n";
}

std::string chunk_line(const KldChunk& chunk) {
  std::string candidates;
  for (const CandidateChunk& one : chunk.candidates) {
    candidates += fmt::format(
        "{}{{\"bytes\":{},\"same_top\":{},\"squared_delta_p\":{:.17g},\"log_ratio\":[{:.9g}],"
        "\"kld\":[{:.9g}]}}",
        candidates.empty() ? "" : ",", one.bytes, one.n_same_top, one.squared_delta_p,
        fmt::join(one.log_ratio, ","), fmt::join(one.kld, ","));
  }
  return fmt::format(
      "{{\"text\":{},\"chunk\":{},\"scored\":{},\"base_nll\":{:.17g},\"candidates\":[{}]}}\n",
      chunk.text_idx, chunk.chunk_idx, chunk.n_scored, chunk.base_nll, candidates);
}

/// False: they are not `n` floats.
bool read_floats(const Json& array, std::int64_t n, std::vector<float>& values) {
  if (!array.is_array() || static_cast<std::int64_t>(array.size()) != n) return false;
  for (const Json& item : array) {
    const auto value = item.get<double>();
    if (!(std::abs(value) <= static_cast<double>(std::numeric_limits<float>::max()))) return false;
    values.push_back(static_cast<float>(value));
  }
  return true;
}

/// None: the line is not whole, or not a chunk of that shape.
std::optional<KldChunk> parse_chunk(std::string_view line, const KldShape& shape) {
  try {
    const Json json = Json::parse(line);
    KldChunk chunk;
    chunk.text_idx = json.at("text").get<int>();
    chunk.chunk_idx = json.at("chunk").get<int>();
    chunk.n_scored = json.at("scored").get<std::int64_t>();
    chunk.base_nll = json.at("base_nll").get<double>();
    for (const Json& one : json.at("candidates")) {
      CandidateChunk candidate;
      candidate.bytes = one.at("bytes").get<std::uint64_t>();
      candidate.n_same_top = one.at("same_top").get<std::int64_t>();
      candidate.squared_delta_p = one.at("squared_delta_p").get<double>();
      if (!read_floats(one.at("log_ratio"), shape.n_scored, candidate.log_ratio)) return {};
      if (!read_floats(one.at("kld"), shape.n_scored, candidate.kld)) return {};
      chunk.candidates.push_back(std::move(candidate));
    }
    if (chunk.n_scored != shape.n_scored || chunk.candidates.size() != shape.n_candidates)
      return {};
    return chunk;
  } catch (const Json::exception&) {
    return {};
  }
}

/// The settings of a first line; none: it is another file's.
std::optional<Json> parse_settings(std::string_view line) {
  try {
    Json json = Json::parse(line);
    if (json.is_object() && json.contains(kMark)) return json;
  } catch (const Json::exception&) {
  }
  return {};
}

}  // namespace

Result<KldCheckpoint> KldCheckpoint::open(Env& env, std::string path, const KldSettings& settings,
                                          const KldShape& shape) {
  KldCheckpoint checkpoint(env, std::move(path));
  auto text = env.read_file(checkpoint.path_, kFileBytesMax);
  if (!text && text.error().code != ErrorCode::kNotFound) return text.error();
  if (text) KVASIR_RETURN_IF_ERROR(checkpoint.read(*text, settings, shape));
  if (checkpoint.text_.empty()) {
    checkpoint.text_ = settings_line(settings);
    KVASIR_RETURN_IF_ERROR(checkpoint.write());  // a path that cannot be is known before the work
  }
  return checkpoint;
}

Status KldCheckpoint::read(const std::string& text, const KldSettings& settings,
                           const KldShape& shape) {
  const std::string expected = settings_line(settings);
  if (expected.starts_with(text)) return {};  // nothing, or a torn first line
  const std::size_t n_first = text.find('\n');
  const auto found = parse_settings(std::string_view(text).substr(0, n_first));
  if (!found) {
    return Error{ErrorCode::kInvalidArgument,
                 path_ + ": --resume: got another file, want a checkpoint of `eval kld`"};
  }
  for (const auto& [name, value] : settings) {
    const std::string got = found->contains(name) && found->at(name).is_string()
                                ? found->at(name).get<std::string>()
                                : std::string("none");
    if (got == value) continue;
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("{}: --resume: a checkpoint of other settings; got {} '{}', want '{}'",
                             path_, name, got, value)};
  }
  text_ = expected;
  int n_lines = 1;
  std::size_t begin = n_first == std::string::npos ? text.size() : n_first + 1;
  while (begin < text.size()) {
    const std::size_t end = text.find('\n', begin);
    const bool is_last = end == std::string::npos || end + 1 == text.size();
    const auto line = std::string_view(text).substr(begin, end - begin);
    auto chunk = parse_chunk(line, shape);
    ++n_lines;
    if (!chunk && is_last) break;
    if (!chunk) {
      return Error{ErrorCode::kCorruption,
                   fmt::format("{}: --resume: line {} is damaged; got {} bytes, want a chunk",
                               path_, n_lines, line.size())};
    }
    text_.append(line).push_back('\n');
    const std::pair key(chunk->text_idx, chunk->chunk_idx);
    chunks_.insert_or_assign(key, std::move(*chunk));
    begin = is_last ? text.size() : end + 1;
  }
  return {};
}

const KldChunk* KldCheckpoint::find(int text_idx, int chunk_idx) const {
  const auto found = chunks_.find({text_idx, chunk_idx});
  return found == chunks_.end() ? nullptr : &found->second;
}

Status KldCheckpoint::save(const KldChunk& chunk) {
  text_ += chunk_line(chunk);
  return write();
}

Status KldCheckpoint::write() const {
  return env_->write_file_atomic(
      path_, {reinterpret_cast<const std::uint8_t*>(text_.data()), text_.size()});
}

}  // namespace kvasir::eval
