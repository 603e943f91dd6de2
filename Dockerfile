# The image of Lathe: the program, links named after NVIDIA's programs, and the C library. `cargo xtask image` makes the same
# one without an engine; here it is made by that and unpacked.
#
#   docker build -t REGISTRY/lathe:0.1.0 .

FROM rust:1.95.0-bookworm AS build
WORKDIR /source
COPY . .
RUN cargo xtask image \
 && mkdir /image \
 && tar -xOf target/image/lathe.tar layer.tar | tar -x -C /image

FROM scratch
COPY --from=build /image/ /
ENV PATH=/usr/bin
ENTRYPOINT ["/usr/bin/lathe"]
