# Two commands are all a newcomer needs: `make demo` and `make test`. Both install what is missing.
# Everything else is listed by `make help`.

PRESET ?= release
BUILD  := build/$(PRESET)
JOBS   ?= $(shell nproc)

.PHONY: help demo test sim build bench asan tsan fuzz format format-check tidy clean packages-build packages-test

help:
	@echo "make demo     install packages if missing, build, start a real cluster, generate text, stop"
	@echo "make test     install packages if missing, build everything, run all tests"
	@echo "make sim      run SEEDS (default 1000) simulated clusters with faults, from seed SEED (default 1)"
	@echo "make bench    build and run the benchmarks (on a quiet machine)"
	@echo "make asan     unit tests under AddressSanitizer and UndefinedBehaviorSanitizer"
	@echo "make tsan     unit tests under ThreadSanitizer"
	@echo "make fuzz     build the libFuzzer targets with clang and run each for FUZZ_SECONDS (default 20)"
	@echo "make format   clang-format all sources; format-check only looks"
	@echo "make tidy     clang-tidy over all sources (slow)"

packages-build:
	@scripts/install-packages build

packages-test:
	@scripts/install-packages test

demo: packages-build
	@scripts/demo

build: packages-test
	@cmake --preset $(PRESET) >/dev/null
	@cmake --build $(BUILD) -j $(JOBS)

test: packages-test
	@cmake --preset $(PRESET) -DTRUNKLINE_TESTS=ON
	@cmake --build $(BUILD) -j $(JOBS)
	@ctest --test-dir $(BUILD) --output-on-failure -j $(JOBS)

SEED  ?= 1
SEEDS ?= 1000

sim: packages-test
	@cmake --preset $(PRESET) >/dev/null
	@cmake --build $(BUILD) -j $(JOBS) --target trunkline-sim
	@$(BUILD)/bin/trunkline-sim --seed $(SEED) --seeds $(SEEDS)

bench: packages-test
	@cmake --preset release -DTRUNKLINE_BENCH=ON >/dev/null
	@cmake --build build/release -j $(JOBS)
	@scripts/bench

asan tsan: packages-test
	@cmake --preset $@
	@cmake --build build/$@ -j $(JOBS) --target unit_tests
	@ctest --preset $@ -j $(JOBS)

fuzz: packages-test
	@scripts/fuzz

format:
	@git ls-files '*.h' '*.cc' | xargs clang-format -i

format-check:
	@git ls-files '*.h' '*.cc' | xargs clang-format --dry-run -Werror

tidy:
	@cmake --preset release >/dev/null
	@git ls-files '*.cc' | grep -v '^tests/fuzz' | xargs -P $(JOBS) -n 4 clang-tidy -p build/release --quiet

clean:
	@rm -rf build
