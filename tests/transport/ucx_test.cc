#include "tests/contract/transport_contract.h"

namespace trunkline::transport {
namespace {

INSTANTIATE_TEST_SUITE_P(Ucx, TransportContract, ::testing::Values("ucx"),
                         [](const auto& param) { return param.param; });

}  // namespace
}  // namespace trunkline::transport
