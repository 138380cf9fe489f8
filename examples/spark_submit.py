"""`kafkafs spark` on a cluster, with the settings of spark-submit:

    spark-submit --master spark://HOST:7077 examples/spark_submit.py export /var/kafka /data/lake orders

Every machine must have kafkafs in its Python (PYSPARK_PYTHON) and see the directories under the same paths.
"""

import os
import sys

from kafkafs.cli import main

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
main(["spark", *sys.argv[1:]], prog_name="spark_submit.py")
