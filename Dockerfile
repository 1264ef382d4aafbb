# The commands of Rallypoint in an image of their own: `rallypoint serve`, `rallypoint gateway`, `rallypoint status`. Workers
# need the programs that they run, so `rallypoint run` belongs into your training image (docs/kubernetes.md#containers).
#
#   docker build --tag rallypoint:0.1.0 .
#
# With a binary that is there already, built on Debian 12 or for an older C library, nothing is compiled:
#
#   mkdir -p target/image && cp target/release/rallypoint target/image/
#   docker build --tag rallypoint:0.1.0 --build-arg SOURCE=binary .

# Where the binary comes from: build, or binary.
ARG SOURCE=build
# The oldest that Cargo.toml allows (rust-version).
ARG RUST=1.90

FROM docker.io/library/rust:${RUST}-slim-bookworm AS build
# etcd-client generates its protocol code with protoc.
ENV PROTOC=/usr/bin/protoc
# hadolint ignore=DL3008
RUN apt-get update && \
    apt-get install --yes --no-install-recommends libprotobuf-dev protobuf-compiler && \
    rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
# Kept between builds by BuildKit, and in no image.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --locked --release --package rallypoint --bin rallypoint && \
    mkdir /out && \
    strip -o /out/rallypoint target/release/rallypoint

FROM scratch AS binary
COPY target/image/rallypoint /out/rallypoint

# hadolint ignore=DL3006
FROM ${SOURCE} AS chosen

# The C library, libgcc and the roots of certificates, without a shell: the least that the binary needs. It has /tmp, and
# the user nonroot.
FROM gcr.io/distroless/cc-debian12:nonroot
LABEL org.opencontainers.image.title="rallypoint" \
      org.opencontainers.image.description="A rendezvous for distributed training on etcd, with a server of its own" \
      org.opencontainers.image.licenses="MIT OR Apache-2.0" \
      org.opencontainers.image.version="0.1.0"
COPY --from=chosen --chmod=0755 /out/rallypoint /usr/local/bin/rallypoint
COPY --chmod=0644 LICENSE-APACHE LICENSE-MIT /usr/share/doc/rallypoint/
# By number, so that Kubernetes can see that it is not root.
USER 65532:65532
WORKDIR /tmp
# It is PID 1: it reaps what it adopts and passes signals on, so no init is needed.
ENTRYPOINT ["/usr/local/bin/rallypoint"]
CMD ["--help"]
