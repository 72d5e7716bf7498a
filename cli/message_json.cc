#include "cli/message_json.h"

#include <google/protobuf/descriptor.h>

#include <cctype>
#include <string>

#include "absl/strings/ascii.h"

namespace trunkline::cli {
namespace {

using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// "PlacementState" -> "PLACEMENT_STATE_", which its values begin with.
std::string EnumPrefix(const std::string& type) {
  std::string prefix;
  for (const char c : type) {
    const bool upper = std::isupper(static_cast<unsigned char>(c)) != 0;
    if (upper && !prefix.empty()) prefix += '_';
    prefix += absl::ascii_toupper(static_cast<unsigned char>(c));
  }
  return prefix + "_";
}

std::string EnumName(const EnumValueDescriptor& value) {
  const std::string prefix = EnumPrefix(value.type()->name());
  std::string name = value.name();
  if (name.rfind(prefix, 0) == 0) name.erase(0, prefix.size());
  return absl::AsciiStrToLower(name);
}

// The field's value, or that of its element `index`.
nlohmann::ordered_json ValueJson(const Message& message,
                                 const FieldDescriptor* field, int index) {
  const Reflection& r = *message.GetReflection();
  const bool many = field->is_repeated();
  const auto get = [&](auto one, auto element) {
    return many ? (r.*element)(message, field, index)
                : (r.*one)(message, field);
  };
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return get(&Reflection::GetInt32, &Reflection::GetRepeatedInt32);
    case FieldDescriptor::CPPTYPE_INT64:
      return get(&Reflection::GetInt64, &Reflection::GetRepeatedInt64);
    case FieldDescriptor::CPPTYPE_UINT32:
      return get(&Reflection::GetUInt32, &Reflection::GetRepeatedUInt32);
    case FieldDescriptor::CPPTYPE_UINT64:
      return get(&Reflection::GetUInt64, &Reflection::GetRepeatedUInt64);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return get(&Reflection::GetDouble, &Reflection::GetRepeatedDouble);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return get(&Reflection::GetFloat, &Reflection::GetRepeatedFloat);
    case FieldDescriptor::CPPTYPE_BOOL:
      return get(&Reflection::GetBool, &Reflection::GetRepeatedBool);
    case FieldDescriptor::CPPTYPE_STRING:
      return get(&Reflection::GetString, &Reflection::GetRepeatedString);
    case FieldDescriptor::CPPTYPE_ENUM:
      return EnumName(*get(&Reflection::GetEnum, &Reflection::GetRepeatedEnum));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return MessageJson(many ? r.GetRepeatedMessage(message, field, index)
                              : r.GetMessage(message, field));
  }
  return nullptr;
}

}  // namespace

nlohmann::ordered_json MessageJson(const Message& message) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  const Reflection& reflection = *message.GetReflection();
  const auto& descriptor = *message.GetDescriptor();
  for (int f = 0; f < descriptor.field_count(); ++f) {
    const FieldDescriptor* field = descriptor.field(f);
    if (field->is_repeated()) {
      nlohmann::ordered_json array = nlohmann::ordered_json::array();
      for (int i = 0; i < reflection.FieldSize(message, field); ++i)
        array.push_back(ValueJson(message, field, i));
      json[field->name()] = std::move(array);
    } else if (!field->has_presence() || reflection.HasField(message, field)) {
      json[field->name()] = ValueJson(message, field, 0);
    }
  }
  return json;
}

}  // namespace trunkline::cli
