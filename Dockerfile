# The node of the demo, with what docker-compose.yml runs (`--target node`), and the command `eldest` alone (`--target
# eldest`). The toolchain stays behind. The programs are static, so the command's image needs no other file.
FROM rust:1-slim-bookworm AS builder
# So that `cargo xtask verify containers` can remove what older builds left: without BuildKit each leaves a gigabyte.
LABEL eldest.stage="builder"
# etcd-client generates its code with protoc; the second package has protobuf's include files.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates protobuf-compiler libprotobuf-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
# `--build-arg PROFILE=dev` is for the tests: sooner built, slower and larger. So is the node's feature that they want.
ARG PROFILE=dist
ARG FEATURES=
# All at once, so that what they share is compiled once; and once only, so without what would speed up a second time.
# The target is this machine. It is named so that the flags are not for build scripts and procedural macros, which cannot be
# static. A static program finds getrandom(2) only if the backend is named; otherwise it keeps /dev/urandom open. The last line
# is for /etc/passwd of an image without users.
RUN CARGO_INCREMENTAL=0 RUSTFLAGS='-C target-feature=+crt-static --cfg getrandom_backend="linux_getrandom"' cargo build --profile "$PROFILE" --locked \
        --target "$(rustc -vV | sed -n 's/^host: //p')" \
        --package eldest-node --package eldest-cli --features "$FEATURES" --bins \
    && mkdir /out \
    && cp target/*/*/eldest target/*/*/eldest-node target/*/*/eldest-worker /out/ \
    && echo "eldest:x:65532:65532::/:/sbin/nologin" > /out/passwd

FROM debian:bookworm-slim AS node
COPY --from=builder /out/eldest /out/eldest-node /out/eldest-worker /usr/local/bin/
USER 65532:65532
# The status page of `eldest run --serve`, and what a node or its worker answers.
EXPOSE 8470 8080
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/local/bin/eldest-node"]

FROM scratch AS eldest
# For https endpoints whose certificates are signed by public authorities.
COPY --from=builder /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=builder /out/passwd /etc/
COPY --from=builder /out/eldest /usr/local/bin/
ENV PATH=/usr/local/bin
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/eldest"]
