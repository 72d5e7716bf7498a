#include "tests/integration/broken_checkpoint.h"

#include <cstdint>
#include <cstring>
#include <filesystem>

#include "common/check.h"
#include "tests/integration/child_process.h"

namespace trunkline::testing {
namespace {
namespace fs = std::filesystem;

// Python's json writes Infinity; nlohmann reads no such thing. Tests put a
// large number in its place.
std::string WithoutInfinity(std::string text) {
  for (size_t at = text.find("Infinity"); at != std::string::npos;
       at = text.find("Infinity", at)) {
    text.replace(at, 8, "null");
  }
  return text;
}

}  // namespace

void CopyCheckpoint(const std::string& from, const std::string& to) {
  fs::create_directories(to);
  for (const auto& entry : fs::directory_iterator(from)) {
    if (entry.is_regular_file())
      fs::copy_file(entry.path(), fs::path(to) / entry.path().filename());
  }
  for (const auto& entry : fs::directory_iterator(to)) {
    fs::permissions(entry.path(), fs::perms::owner_write,
                    fs::perm_options::add);
  }
}

void EditJson(const std::string& file,
              const std::function<void(nlohmann::json&)>& edit) {
  nlohmann::json json = nlohmann::json::parse(WithoutInfinity(ReadFile(file)));
  json.erase("time_step_limit");
  edit(json);
  WriteFile(file, json.dump(1));
}

void EditSafetensorsHeader(const std::string& file,
                           const std::function<void(nlohmann::json&)>& edit) {
  const std::string content = ReadFile(file);
  uint64_t length = 0;
  TL_CHECK_GE(content.size(), sizeof(length)) << file;
  std::memcpy(&length, content.data(), sizeof(length));
  nlohmann::json header = nlohmann::json::parse(content.substr(8, length));
  edit(header);
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t new_length = text.size();
  std::string out(8, '\0');
  std::memcpy(out.data(), &new_length, sizeof(new_length));
  WriteFile(file, out + text + content.substr(8 + length));
}

void ReplaceInFile(const std::string& file, const std::string& from,
                   const std::string& to) {
  std::string content = ReadFile(file);
  const size_t at = content.find(from);
  TL_CHECK(at != std::string::npos) << file << " holds no " << from;
  content.replace(at, from.size(), to);
  WriteFile(file, content);
}

void Truncate(const std::string& file, double fraction) {
  fs::resize_file(
      file, static_cast<uintmax_t>(static_cast<double>(fs::file_size(file)) *
                                   fraction));
}

}  // namespace trunkline::testing
