#pragma once

// What two ends of the ucx backend say to each other.
//
// At the door, over plain tcp (door.h): DoorKnock and DoorAnswer.
// Then active messages with a fixed header each:
//   hello      the first message of each side; a connection is up when it has
//              the other's
//   chunk      a piece of a message; the payload follows the header
//   heartbeat  empty
// All in the byte order of the host: both ends of a UCX connection have the
// same, or UCX itself would not work. With another order the magic is wrong.
//
// A message is cut into chunks so that a heartbeat never waits behind more than
// kWindowBytes, whatever the message's size: on a 100 Mbit/s link that is a
// third of a second.

#include <cstddef>
#include <cstdint>

namespace trunkline::transport::ucx {

enum AmId : unsigned { kAmHello = 0, kAmChunk = 1, kAmHeartbeat = 2 };
// Ids from here up are UCX's to refuse; those between are refused by us.
inline constexpr unsigned kAmIds = 32;

inline constexpr uint32_t kMagic = 0x50544c54;  // "TLTP"
inline constexpr uint32_t kWireVersion = 1;

// Part of wire version 1: every chunk but a message's last has this size.
inline constexpr size_t kChunkBytes = size_t{1} << 20;
// What may be under way at once on one connection, in each direction.
inline constexpr size_t kWindowBytes = size_t{4} << 20;
inline constexpr size_t kWindowMessages = 256;

struct DoorKnock {
  uint32_t magic = kMagic;
  uint32_t version = kWireVersion;
};
static_assert(sizeof(DoorKnock) == 8);

enum class DoorVerdict : uint32_t {
  kWelcome = 0,
  kOtherVersion = 1,
  kFull = 2,
};

struct DoorAnswer {
  uint32_t magic = kMagic;
  uint32_t version = kWireVersion;
  DoorVerdict verdict = DoorVerdict::kWelcome;
  // Where UCX listens: at this port of ipv4, or of the address that was dialed.
  uint16_t port = 0;
  uint16_t has_ipv4 = 0;
  uint64_t ticket = 0;
  uint8_t ipv4[4] = {};  // network order
  uint8_t unused[4] = {};
};
static_assert(sizeof(DoorAnswer) == 32);

struct Hello {
  uint32_t magic = kMagic;
  uint32_t version = kWireVersion;
  uint64_t ticket = 0;  // from the dialer: the door's; from the listener: zero
};
static_assert(sizeof(Hello) == 16);

struct ChunkHeader {
  uint64_t sequence = 0;  // of the message within its connection and direction
  uint64_t message_bytes = 0;
  uint64_t offset = 0;  // of the chunk within the message
};
static_assert(sizeof(ChunkHeader) == 24);

}  // namespace trunkline::transport::ucx
