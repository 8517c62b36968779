// kvasir inspect: what is in a GGUF file, without loading it.
#include <algorithm>
#include <variant>

#include "command.h"
#include "gguf/describe.h"
#include "gguf/file.h"

namespace kvasir::cli {
namespace {

constexpr std::size_t kArrayElementsShown = 8;

struct InspectFlags {
  ModelFlags model;
  std::string file;
  bool json = false;
};

nlohmann::json to_json(const gguf::Array& array) {
  nlohmann::json first = nlohmann::json::array();
  for (std::size_t i = 0; i < std::min(array.size(), kArrayElementsShown); ++i) {
    if (array.element_type() == gguf::ValueType::kString) {
      first.push_back(std::string(array.string_at(i)));
    } else if (array.element_type() == gguf::ValueType::kBool) {
      first.push_back(array.int_at(i) != 0);
    } else if (array.is_integer()) {
      first.push_back(array.int_at(i));
    } else {
      first.push_back(array.double_at(i));
    }
  }
  return {{"size", array.size()}, {"first", std::move(first)}};
}

nlohmann::json to_json(const gguf::File& file, const gguf::Summary& summary) {
  nlohmann::json metadata = nlohmann::json::array();
  for (std::size_t i = 0; i < summary.metadata.size(); ++i) {
    nlohmann::json value = std::visit(
        [](const auto& data) -> nlohmann::json {
          using Data = std::decay_t<decltype(data)>;
          if constexpr (std::is_same_v<Data, gguf::Array>)
            return to_json(data);
          else
            return data;
        },
        file.metadata()[i].value.data);
    metadata.push_back({{"key", summary.metadata[i].key},
                        {"type", summary.metadata[i].type},
                        {"value", std::move(value)}});
  }
  nlohmann::json tensors = nlohmann::json::array();
  for (const gguf::TensorSummary& tensor : summary.tensors) {
    tensors.push_back({{"name", tensor.name},
                       {"type", tensor.type},
                       {"shape", tensor.shape},
                       {"offset", tensor.file_offset},
                       {"bytes", tensor.n_bytes}});
  }
  nlohmann::json totals = nlohmann::json::array();
  for (const gguf::TypeTotal& total : summary.totals) {
    totals.push_back({{"type", total.type},
                      {"tensors", total.n_tensors},
                      {"values", total.n_values},
                      {"bytes", total.n_bytes}});
  }
  return {{"file", summary.name},
          {"version", summary.version},
          {"alignment", summary.alignment},
          {"file_bytes", summary.file_bytes},
          {"tensor_bytes", summary.tensor_bytes},
          {"parameters", summary.n_parameters},
          {"metadata", std::move(metadata)},
          {"tensors", std::move(tensors)},
          {"totals", std::move(totals)}};
}

Status inspect(const InspectFlags& flags) {
  std::string path = flags.file;
  if (path.empty()) {
    KVASIR_ASSIGN_OR_RETURN(path, flags.model.path());
  }
  KVASIR_ASSIGN_OR_RETURN(const gguf::File file, gguf::File::open(Env::posix(), path));
  const gguf::Summary summary = gguf::describe(file);
  print(flags.json ? dump(to_json(file, summary)) + "\n" : gguf::format_summary(summary));
  return {};
}

}  // namespace

void add_inspect(CLI::App& app, std::vector<Command>& commands) {
  auto flags = std::make_shared<InspectFlags>();
  CLI::App* sub = app.add_subcommand("inspect", "metadata and tensors of a GGUF file");
  auto* file = sub->add_option("file", flags->file, "GGUF file (default: as -m)");
  flags->model.add(*sub, ModelFlags::Set::kModelOnly);
  file->excludes(sub->get_option("--model"));
  sub->footer(
      "Examples:\n"
      "  kvasir inspect model.gguf\n"
      "  kvasir inspect model.gguf --json | jq .totals\n");
  sub->add_flag("--json", flags->json, "one JSON object; strings whole, arrays by their beginning");
  commands.push_back({sub, [flags] {
                        const Status status = inspect(*flags);
                        return status ? Exit::kOk : report(status.error());
                      }});
}

}  // namespace kvasir::cli
