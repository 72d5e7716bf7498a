#pragma once

// What transport/transport.h promises, as tests. A backend's test file includes
// this header and instantiates the suite with its kind:
//
//   INSTANTIATE_TEST_SUITE_P(Inprocess, TransportContract,
//                            ::testing::Values("inprocess"));

#include "tests/contract/transport_connections_contract.h"
#include "tests/contract/transport_messages_contract.h"
