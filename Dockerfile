# Build: docker build -t sluicegate .
# Run:   docker run -p 8080:8080 sluicegate
# Yours: docker run -p 8080:8080 -v ./conf:/etc/sluicegate:ro -v sluicegate:/var/lib/sluicegate sluicegate
# ./conf is a directory with a gateway.toml in it. Do not mount the file alone: an editor that saves by a rename makes a new
# file, and the container goes on with the old one. User 10001 has to be able to read it.
# In a container a listener has to be on 0.0.0.0 to be reached from outside, and dead letters need a directory that user
# 10001 may write, such as /var/lib/sluicegate: start from docker/gateway.toml.
FROM rust:1-slim-bookworm AS build
WORKDIR /src
COPY Cargo.toml Cargo.lock gateway.toml ./
COPY src src
COPY benches benches
COPY crates crates
RUN cargo build --profile dist --locked && mkdir /state

# The C library of the build stage's Debian, certificates of authorities and nothing else: no shell, no package manager.
# A static binary on scratch would be smaller, but aws-lc is then built for musl, which needs cmake and a
# musl toolchain, musl's allocator is slower under many threads, and authorities have to be copied in.
FROM gcr.io/distroless/cc-debian12
COPY --from=build /src/target/dist/sluicegate /usr/local/bin/sluicegate
COPY docker/gateway.toml /etc/sluicegate/gateway.toml
# A new volume takes over the owner of the directory that it is mounted at.
COPY --from=build --chown=10001:10001 /state /var/lib/sluicegate
# A number, so that Kubernetes can see that it is not root (runAsNonRoot).
USER 10001:10001
# dead_letter.directory is relative to the configuration file: the image's file names a volume.
VOLUME /var/lib/sluicegate
EXPOSE 8080
# The form without a shell, for there is none.
HEALTHCHECK --interval=10s --timeout=4s --start-period=5s \
  CMD ["/usr/local/bin/sluicegate", "check", "--health", "-c", "/etc/sluicegate/gateway.toml"]
# The gateway is process 1 and gets SIGTERM itself: it drains. As process 1 it refuses an upgrade in place: start another
# container instead.
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/local/bin/sluicegate"]
CMD ["run", "-c", "/etc/sluicegate/gateway.toml"]
