# kafkafs without a compiler in the image. The commands need nothing of the host; `mount` needs /dev/fuse and
# SYS_ADMIN: see examples/kubernetes.md.
#
#   docker build -t kafkafs .
#   docker run --rm -v /var/kafka:/var/kafka:ro kafkafs topics list /var/kafka
FROM python:3.13-slim-trixie AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
COPY pyproject.toml README.md /src/
COPY storage /src/storage
COPY kafkafs /src/kafkafs
RUN python -m venv /opt/kafkafs && /opt/kafkafs/bin/pip install --no-cache-dir '/src[schemas]'

FROM python:3.13-slim-trixie
RUN apt-get update && apt-get install -y --no-install-recommends fuse3 jq && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 --create-home kafkafs && mkdir /mnt/kafka && chown kafkafs /mnt/kafka
COPY --from=build /opt/kafkafs /opt/kafkafs
ENV PATH=/opt/kafkafs/bin:$PATH
USER 1000:1000
WORKDIR /home/kafkafs
ENTRYPOINT ["kafkafs"]
CMD ["--help"]
