// kvasir doctor: what this machine is, which code it runs, whether the default model is there.
#include <fmt/core.h>
#include <sys/statvfs.h>

#include <fstream>

#include "base/units.h"
#include "command.h"
#include "simd/cpu.h"

namespace kvasir::cli {
namespace {

struct DoctorFlags {
  ModelFlags model;
  bool json = false;
};

/// MemTotal or MemAvailable in bytes; 0 where the system does not say.
std::uint64_t memory_info(const std::string& field) {
  std::ifstream info("/proc/meminfo");
  std::string name, unit;
  std::uint64_t kib = 0;
  while (info >> name >> kib) {
    std::getline(info, unit);
    if (name == field + ":") return kib * 1024;
  }
  return 0;
}

/// Free bytes of the file system that holds `path`; 0 when it cannot be told.
std::uint64_t free_disk(const std::string& path) {
  struct statvfs info {};
  if (::statvfs(path.c_str(), &info) != 0) return 0;
  return static_cast<std::uint64_t>(info.f_bavail) * info.f_frsize;
}

/// The bracketed choice of a /sys/kernel/mm/transparent_hugepage file; "unknown" elsewhere.
std::string huge_pages() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string word;
  while (file >> word) {
    if (word.size() > 2 && word.front() == '[') return word.substr(1, word.size() - 2);
  }
  return "unknown";
}

std::string join(const std::vector<std::string>& words) {
  std::string all;
  for (const std::string& word : words) all += (all.empty() ? "" : " ") + word;
  return all.empty() ? "none" : all;
}

struct ModelState {
  const char* state;   ///< one word
  std::string detail;  ///< the path, or what is wrong and what helps
  bool ok() const { return state == std::string_view("fine"); }
};

/// Opens what `run` would open, without the weights.
Status check_model(const std::string& path) {
  KVASIR_ASSIGN_OR_RETURN(const gguf::File file, gguf::File::open(Env::posix(), path));
  KVASIR_ASSIGN_OR_RETURN(const auto config, model::ModelConfig::from_gguf(file));
  const auto tokenizer = text::Tokenizer::load(file);
  return tokenizer ? Status{} : Status{tokenizer.error()};
}

ModelState model_state(const ModelFlags& flags) {
  const auto path = flags.path();
  if (!path) return {"missing", path.error().message};
  const Status status = check_model(*path);
  if (status) return {"fine", *path};
  const std::string& message = status.error().message;
  switch (status.error().code) {
    case ErrorCode::kNotFound:
      return {"missing", message + " (`make model` fetches a default one)"};
    case ErrorCode::kUnsupported:
      return {"unsupported", message};
    case ErrorCode::kIo:
      return {"unreadable", message};
    default:
      return {"damaged", message};
  }
}

Exit doctor(const DoctorFlags& flags) {
  const simd::CpuReport cpu = simd::cpu_report();
  const int n_threads = ThreadPool::usable_cpus();
  const ModelState model = model_state(flags.model);
  const Exit code = model.ok() ? Exit::kOk : Exit::kError;
  if (flags.json) {
    print(
        dump({{"version", KVASIR_VERSION},
              {"cpu", cpu.brand},
              {"caches", cpu.caches},
              {"features", cpu.features},
              {"simd", {{"active", cpu.active_target}, {"compiled", cpu.compiled_targets}}},
              {"threads", n_threads},
              {"memory_total", memory_info("MemTotal")},
              {"memory_available", memory_info("MemAvailable")},
              {"disk_free", free_disk(".")},
              {"huge_pages", huge_pages()},
              {"model", {{"ok", model.ok()}, {"state", model.state}, {"detail", model.detail}}}}) +
        "\n");
    return code;
  }
  print(fmt::format("version     kvasir {}\n", KVASIR_VERSION));
  print(fmt::format("cpu         {}\n", cpu.brand));
  print(fmt::format("caches      {}\n", join(cpu.caches)));
  print(fmt::format("features    {}\n", join(cpu.features)));
  print(fmt::format("simd        {} in use (compiled: {})\n", cpu.active_target,
                    join(cpu.compiled_targets)));
  print(fmt::format("threads     {} usable\n", n_threads));
  print(fmt::format("memory      {} of {} available\n", format_bytes(memory_info("MemAvailable")),
                    format_bytes(memory_info("MemTotal"))));
  print(fmt::format("huge pages  {}{}\n", huge_pages(),
                    huge_pages() == "never" ? " (reads of weights and KV are slower)" : ""));
  print(fmt::format("disk        {} free here\n", format_bytes(free_disk("."))));
  print(fmt::format("model       {}: {}\n", model.state, printable(model.detail)));
  return code;
}

}  // namespace

void add_doctor(CLI::App& app, std::vector<Command>& commands) {
  auto flags = std::make_shared<DoctorFlags>();
  CLI::App* sub = app.add_subcommand("doctor", "what this machine is and whether all is well");
  flags->model.add(*sub, ModelFlags::Set::kModelOnly);
  sub->add_flag("--json", flags->json, "one JSON object");
  sub->footer(
      "Exits with 1 when the model is missing or cannot run.\n"
      "Examples:\n"
      "  kvasir doctor\n"
      "  kvasir doctor -m model.gguf --json\n");
  commands.push_back({sub, [flags] { return doctor(*flags); }});
}

}  // namespace kvasir::cli
