// How operators name a store.

#include "coordinator/store_address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trunkline::coordinator {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(StoreAddress, NamesMemoryAFileOrEtcdsMembersAndPrefix) {
  EXPECT_EQ(ParseStoreAddress("")->kind, StoreAddress::Kind::kMemory);
  const auto file = ParseStoreAddress("sqlite:/var/lib/t/state.db");
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->kind, StoreAddress::Kind::kSqlite);
  EXPECT_EQ(file->path, "/var/lib/t/state.db");
  const auto etcd = ParseStoreAddress("etcd://a:2379,10.0.0.2:2380/prod/blue/");
  ASSERT_TRUE(etcd.ok());
  EXPECT_EQ(etcd->kind, StoreAddress::Kind::kEtcd);
  EXPECT_THAT(etcd->endpoints, ElementsAre("a:2379", "10.0.0.2:2380"));
  EXPECT_EQ(etcd->prefix, "/prod/blue");
  for (const char* text : {"etcd://a:1", "etcd://a:1/"}) {
    EXPECT_EQ(ParseStoreAddress(text)->prefix, "/trunkline") << text;
  }
}

TEST(StoreAddress, IsWrittenAsItIsRead) {
  for (const char* text : {"sqlite:x.db", "etcd://a:1,b:2/p/q"}) {
    EXPECT_EQ(FormatStoreAddress(*ParseStoreAddress(text)), text);
  }
  EXPECT_EQ(FormatStoreAddress(StoreAddress()), "memory");
}

TEST(StoreAddress, WhatCanNotBeIsNamed) {
  const std::pair<const char*, const char*> wrong[] = {
      {"state.db", "neither sqlite:PATH nor etcd://"},
      {"sqlite:", "names no file"},
      {"etcd://", "\"\" is not host:port"},
      {"etcd:///prefix", "\"\" is not host:port"},
      {"etcd://a:1,,b:2/p", "\"\" is not host:port"},
      {"etcd://a/p", "\"a\" is not host:port"},
      {"etcd://a:0/p", "\"a:0\" is not host:port"},
      {"etcd://a:65536/p", "\"a:65536\" is not host:port"}};
  for (const auto& [text, said] : wrong) {
    const absl::Status status = ParseStoreAddress(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(said));
  }
  const std::pair<const char*, const char*> missing[] = {
      {"etcds://a:1/p", "TLS"},
      {"https://a:1/p", "TLS"},
      {"etcd://root:secret@a:1/p", "user and password"}};
  for (const auto& [text, said] : missing) {
    const absl::Status status = ParseStoreAddress(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(said));
  }
}

}  // namespace
}  // namespace trunkline::coordinator
