#!/bin/bash
# What a container of the gpujoin image does. Runs it under tini, so that signals arrive and children are reaped.
set -euo pipefail

usage() {
    cat <<'TEXT'
Usage: docker run [options] gpujoin COMMAND [arguments]

  doctor [--json]      say what is usable in this container (the default)
  demo [options]       run queries by Spark and with gpujoin, and compare them
  version              print the version
  master [options]     a Spark standalone master, on port 7077, its page on port 8080
  worker URL [options] a Spark standalone worker of the master at URL, such as spark://master:7077
  driver, executor     what Spark on Kubernetes starts; not for people
  anything else        is run as it stands: python app.py, spark-submit ..., bash
TEXT
}

case "${1:-doctor}" in
-h | --help | help)
    usage
    exit 0
    ;;
demo | doctor | version)
    command=(gpujoin "$@")
    [ $# -gt 0 ] || command=(gpujoin doctor)
    ;;
master)
    shift
    command=("$SPARK_HOME/bin/spark-class" org.apache.spark.deploy.master.Master --host "${SPARK_MASTER_HOST:-$(hostname)}" "$@")
    ;;
worker)
    shift
    if [ $# -eq 0 ]; then
        echo "entrypoint: worker needs the URL of its master, such as spark://master:7077" >&2
        exit 2
    fi
    options=()
    defaults=${SPARK_CONF_DIR:-$SPARK_HOME/conf}/spark-defaults.conf
    # A worker that is to offer a GPU, as the image's defaults say, does not start where there is none.
    if ! command -v nvidia-smi >/dev/null && [ -f "$defaults" ]; then
        echo "entrypoint: no nvidia-smi, so the worker offers no GPU" >&2
        properties=$(mktemp)
        grep -v '^spark\.worker\.resource\.gpu\.' "$defaults" >"$properties" || true
        options=(--properties-file "$properties")
    fi
    command=("$SPARK_HOME/bin/spark-class" org.apache.spark.deploy.worker.Worker "${options[@]}" "$@")
    ;;
driver)
    shift
    command=(
        "$SPARK_HOME/bin/spark-submit"
        --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS"
        --conf "spark.executorEnv.SPARK_DRIVER_POD_IP=$SPARK_DRIVER_BIND_ADDRESS"
        --deploy-mode client
        "$@"
    )
    ;;
executor)
    shift
    # Spark numbers the JVM's options: SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1, ...
    java_options=()
    index=0
    while name="SPARK_JAVA_OPT_$index" && [ -n "${!name+set}" ]; do
        java_options+=("${!name}")
        index=$((index + 1))
    done
    command=(
        "$JAVA_HOME/bin/java" "${java_options[@]}"
        "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY"
        -cp "$SPARK_CONF_DIR:${SPARK_CLASSPATH:-}:$SPARK_HOME/jars/*${SPARK_EXTRA_CLASSPATH:+:$SPARK_EXTRA_CLASSPATH}"
        org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend
        --driver-url "$SPARK_DRIVER_URL"
        --executor-id "$SPARK_EXECUTOR_ID"
        --cores "$SPARK_EXECUTOR_CORES"
        --app-id "$SPARK_APPLICATION_ID"
        --hostname "$SPARK_EXECUTOR_POD_IP"
        --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID"
        --podName "$SPARK_EXECUTOR_POD_NAME"
        "$@"
    )
    ;;
*)
    command=("$@")
    ;;
esac

exec tini -s -- "${command[@]}"
