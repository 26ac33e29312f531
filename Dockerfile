# The node of the demo. Two stages: the toolchain stays behind, the image has the program and Debian's libc.
FROM rust:1-slim-bookworm AS builder
# So that `cargo xtask test containers` can remove what older builds left: without BuildKit each leaves a gigabyte.
LABEL eldest.stage="builder"
# etcd-client generates its code with protoc; the second package has protobuf's include files.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends protobuf-compiler libprotobuf-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN cargo build --release --locked --package eldest-node

FROM debian:bookworm-slim
COPY --from=builder /src/target/release/eldest-node /usr/local/bin/eldest-node
USER 65532:65532
EXPOSE 8080
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/local/bin/eldest-node"]
