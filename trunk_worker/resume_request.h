#pragma once

// A request that goes on with a broken stream: is it the request its token was
// made for, and is this the place to go on? Pure.

#include "absl/status/status.h"
#include "proto/generation.pb.h"
#include "trunk_worker/generation_request.h"
#include "trunk_worker/generation_wire.h"

namespace trunkline::trunk {

// `request` is what `wire` asks for without its resume point; gets what was
// delivered and, where wire says nothing, what the first stream chose (seed,
// defaults, length).
//
// INVALID_ARGUMENT: the token is damaged, or the request or the delivered ids
// are not those it was made for; the message names the field.
// FAILED_PRECONDITION: this trunk can not make the same text (other model,
// other numerics class, other tokenizer).
absl::Status Resume(const v1::GenerateRequest& wire, const ServedModel& model,
                    GenerationRequest* request);

}  // namespace trunkline::trunk
