# Build: docker build -t sluicegate .
# Run:   docker run -p 8080:8080 -v ./my-gateway.toml:/etc/sluicegate/gateway.toml:ro sluicegate
# Keep: -v sluicegate:/var/lib/sluicegate keeps dead letters and the key of their marks, which is beside their directory.
# In a container a listener has to be on 0.0.0.0 to be reached from outside, and dead letters need a directory that user
# 10001 may write, such as /var/lib/sluicegate: start from docker/gateway.toml.
FROM rust:1-slim-bookworm AS build
WORKDIR /src
COPY Cargo.toml Cargo.lock gateway.toml ./
COPY src src
COPY benches benches
COPY loom loom
RUN cargo build --release --locked && strip target/release/sluicegate

FROM debian:bookworm-slim
RUN useradd --system --uid 10001 --home-dir /var/lib/sluicegate --create-home sluicegate \
 && mkdir -p /etc/sluicegate
COPY --from=build /src/target/release/sluicegate /usr/local/bin/sluicegate
COPY docker/gateway.toml /etc/sluicegate/gateway.toml
USER sluicegate
# dead_letter.directory is relative to the configuration file: the image's file names a volume.
VOLUME /var/lib/sluicegate
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=4s --start-period=5s \
  CMD ["sluicegate", "check", "--health", "-c", "/etc/sluicegate/gateway.toml"]
ENTRYPOINT ["sluicegate"]
CMD ["run", "-c", "/etc/sluicegate/gateway.toml"]
