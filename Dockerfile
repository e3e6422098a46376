# docker build -t esper .
# docker run --rm -v "$PWD/outputs:/runs/outputs" esper +preset=digits          (with --gpus all: devices=auto)
FROM python:3.11-slim
WORKDIR /esper
COPY pyproject.toml README.md LICENSE ./
COPY conf conf
COPY esper esper
RUN pip install --no-cache-dir .
WORKDIR /runs
ENTRYPOINT ["esper-train"]
CMD ["--help"]
