#!/bin/sh
# Submits an application to Kubernetes with one GPU for each executor.
#
#   MASTER=k8s://https://HOST:6443 IMAGE=registry/gpujoin docker/kubernetes/submit.sh APPLICATION [arguments]
#
#   MASTER     the API server; kubectl cluster-info prints its address
#   IMAGE      the image of docker/Dockerfile, in a registry that the nodes can reach
#   NAMESPACE  default gpujoin; see rbac.yaml
#   EXECUTORS  how many, one GPU each; default 2
#   CORES      cores of each executor; default 4
#   MEMORY     heap of each executor; default 4g. Python workers get as much again.
#   LOCAL_DISK size limit of the folder for shuffle and spill files; default 100Gi
#
# APPLICATION is a path inside the image (local:///...) or one that the pods can read (https://...). For s3a:// the
# image must be given the JARs of hadoop-aws, which PySpark's package lacks.
# More settings may stand in SUBMIT_OPTIONS, such as "--conf spark.gpujoin.explain=all".
set -eu
here=$(cd "$(dirname "$0")" && pwd)

for name in MASTER IMAGE; do
    eval "value=\${$name:-}"
    if [ -z "$value" ]; then
        echo "submit.sh: $name is not set; see the head of $0" >&2
        exit 2
    fi
done
if [ $# -eq 0 ]; then
    echo "submit.sh: name an application, such as local:///opt/app/job.py" >&2
    exit 2
fi

# shellcheck disable=SC2086  # SUBMIT_OPTIONS holds several words
exec "${SPARK_SUBMIT:-spark-submit}" \
    --master "$MASTER" \
    --deploy-mode cluster \
    --name gpujoin \
    --conf spark.kubernetes.namespace="${NAMESPACE:-gpujoin}" \
    --conf spark.kubernetes.authenticate.driver.serviceAccountName=gpujoin \
    --conf spark.kubernetes.container.image="$IMAGE" \
    --conf spark.kubernetes.driver.podTemplateFile="$here/driver-pod.yaml" \
    --conf spark.kubernetes.executor.podTemplateFile="$here/executor-pod.yaml" \
    --conf spark.executor.instances="${EXECUTORS:-2}" \
    --conf spark.executor.cores="${CORES:-4}" \
    --conf spark.executor.memory="${MEMORY:-4g}" \
    --conf spark.executor.memoryOverheadFactor=1.0 \
    --conf spark.executor.resource.gpu.amount=1 \
    --conf spark.executor.resource.gpu.vendor=nvidia.com \
    --conf spark.executor.resource.gpu.discoveryScript=/opt/gpujoin/discover-gpus.sh \
    --conf spark.task.resource.gpu.amount=0.01 \
    --conf spark.kubernetes.executor.volumes.emptyDir.spark-local-dir-1.mount.path=/local \
    --conf spark.kubernetes.executor.volumes.emptyDir.spark-local-dir-1.options.sizeLimit="${LOCAL_DISK:-100Gi}" \
    ${SUBMIT_OPTIONS:-} \
    "$@"
