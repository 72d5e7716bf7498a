#!/usr/bin/python3
"""A client that shares no code with the server: generated from the protos by Debian's grpcio tools.

Starts a real cluster, streams a completion, compares it with the unary call, lists the services by
reflection, and checks that errors carry the documented codes. Prints `ok` lines; exits non-zero on the
first failure.
"""
import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time

import grpc
from grpc_tools import protoc


def generate(root, out, protos, include):
    args = ["protoc", "-I", include, "--python_out", out, "--grpc_python_out", out] + protos
    if protoc.main(args) != 0:
        sys.exit("protoc failed on %s" % protos)


def check(condition, what):
    if not condition:
        sys.exit("FAILED: " + what)
    print("ok: " + what, flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--trunkline", required=True)
    parser.add_argument("--source", required=True)
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as work:
        generate(args.source, work, ["proto/generation.proto"], args.source)
        generate(args.source, work, ["reflection.proto"], os.path.join(args.source, "tests/integration"))
        sys.path.insert(0, work)
        from proto import generation_pb2 as pb, generation_pb2_grpc as rpc
        import reflection_pb2, reflection_pb2_grpc

        address_file = os.path.join(work, "address")
        up = subprocess.Popen([args.trunkline, "up", "--model", os.path.join(args.source, "models/demo"),
                               "--experts", "2", "--log-dir", work, "--address-file", address_file],
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        try:
            end = time.monotonic() + 60
            while not (os.path.exists(address_file) and os.path.getsize(address_file)):
                if up.poll() is not None or time.monotonic() > end:
                    sys.exit("FAILED: the cluster did not start")
                try:
                    up.wait(timeout=0.05)
                except subprocess.TimeoutExpired:
                    pass
            channel = grpc.insecure_channel(open(address_file).read().strip())
            stub = rpc.GenerationStub(channel)

            model = stub.GetModel(pb.GetModelRequest(), timeout=20)
            check(model.layer_pattern == "MEM*EMEM*E", "GetModel names the layer pattern " + model.layer_pattern)

            request = pb.GenerateRequest(text="And the LORD spake unto Moses, saying,", max_tokens=24,
                                         add_special_tokens=True, ignore_eos=True, logprobs=2,
                                         sampling=pb.SamplingParams(temperature=0.0))
            chunks = list(stub.GenerateStream(request, timeout=60))
            text = "".join(c.text for c in chunks)
            ids = [i for c in chunks for i in c.token_ids]
            check(len(chunks) > 1 and len(ids) == 24, "24 tokens arrive in %d chunks" % len(chunks))
            check(chunks[-1].finish_reason == pb.FINISH_REASON_LENGTH, "the last chunk says why it ended")
            check(chunks[-1].usage.output_tokens == 24, "usage counts the output tokens")
            check(all(len(c.logprobs) == len(c.token_ids) for c in chunks), "each token has its log-probabilities")
            whole = stub.Generate(request, timeout=60)
            check(whole.text == text and list(whole.token_ids) == ids, "Generate gives the streamed text: %r" % text)

            tokens = stub.Tokenize(pb.TokenizeRequest(text="Blessed are the meek"), timeout=10).ids
            back = stub.Detokenize(pb.DetokenizeRequest(ids=tokens), timeout=10).text
            check(back == "Blessed are the meek", "Detokenize reverses Tokenize")

            try:
                stub.Generate(pb.GenerateRequest(text="x", sampling=pb.SamplingParams(top_p=7.0)), timeout=10)
                sys.exit("FAILED: top_p = 7 was accepted")
            except grpc.RpcError as e:
                check(e.code() == grpc.StatusCode.INVALID_ARGUMENT and "top_p" in e.details(),
                      "a bad field is INVALID_ARGUMENT and named: " + e.details())

            reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
            answer = next(iter(reflection.ServerReflectionInfo(
                iter([reflection_pb2.ServerReflectionRequest(list_services="*")]), timeout=10)))
            services = [s.name for s in answer.list_services_response.service]
            check("trunkline.v1.Generation" in services, "reflection lists " + ", ".join(services))
        finally:
            up.send_signal(signal.SIGTERM)
            try:
                up.wait(timeout=30)
            except subprocess.TimeoutExpired:
                up.kill()
                sys.exit("FAILED: the cluster did not stop")
    print("passed", flush=True)


if __name__ == "__main__":
    main()
