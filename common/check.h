#pragma once

// TL_CHECK: our own invariants. Stays on in release builds and ends the process
// with the condition, the place and the streamed message. Never for input, the
// network or a peer: those are a Status. TL_DCHECK: the same in debug builds
// only, for hot loops.

#include <sstream>

namespace trunkline::internal {

class CheckFailure {
 public:
  CheckFailure(const char* file, int line, const char* condition);
  [[noreturn]] ~CheckFailure();
  std::ostream& stream() { return stream_; }

 private:
  std::ostringstream stream_;
};

struct Voidify {
  void operator&(std::ostream&) const {}
};

}  // namespace trunkline::internal

#define TL_CHECK(condition)                                         \
  (__builtin_expect(static_cast<bool>(condition), 1))               \
      ? (void)0                                                     \
      : ::trunkline::internal::Voidify() &                          \
            ::trunkline::internal::CheckFailure(__FILE__, __LINE__, \
                                                #condition)         \
                .stream()

#define TL_CHECK_OP_(a, op, b) \
  TL_CHECK((a)op(b)) << " (" << (a) << " against " << (b) << ") "
#define TL_CHECK_EQ(a, b) TL_CHECK_OP_(a, ==, b)
#define TL_CHECK_NE(a, b) TL_CHECK_OP_(a, !=, b)
#define TL_CHECK_LT(a, b) TL_CHECK_OP_(a, <, b)
#define TL_CHECK_LE(a, b) TL_CHECK_OP_(a, <=, b)
#define TL_CHECK_GT(a, b) TL_CHECK_OP_(a, >, b)
#define TL_CHECK_GE(a, b) TL_CHECK_OP_(a, >=, b)

#ifdef TRUNKLINE_DEBUG
#define TL_DCHECK(condition) TL_CHECK(condition)
#else
#define TL_DCHECK(condition) \
  while (false) TL_CHECK(condition)
#endif
