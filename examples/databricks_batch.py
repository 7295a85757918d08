# Databricks notebook source
# MAGIC %md
# MAGIC # Score a table with a published model
# MAGIC The repository is what `hfx export` has made, on a volume that all workers can read.

# COMMAND ----------

# MAGIC %pip install /Volumes/main/models/hfx-0.2.0-py3-none-manylinux_2_17_x86_64.whl[batch]
# MAGIC %pip install tokenizers onnxruntime

# COMMAND ----------

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, count

from hfx.batch.spark import score, udf

TABLE = "main.reviews.texts"
SCORED = "main.reviews.labelled"
REPOSITORY = "/Volumes/main/models/repository"
MODEL = "sentiment"

spark = SparkSession.builder.getOrCreate()

# COMMAND ----------

# MAGIC %md
# MAGIC Every column stays; `predicted_label`, `score`, `probabilities`, `error` and `truncated_tokens` are added.

# COMMAND ----------

texts = spark.read.table(TABLE)
scored = score(texts, model=MODEL, column="text", repository=REPOSITORY)
scored.write.mode("overwrite").saveAsTable(SCORED)

# COMMAND ----------

# MAGIC %md
# MAGIC A row that can't be answered has the reason in `error`; the others are not affected.

# COMMAND ----------

spark.read.table(SCORED).groupBy("predicted_label", "error").agg(count("*").alias("rows")).show(truncate=False)

# COMMAND ----------

# MAGIC %md
# MAGIC As a function of a column (Spark 4.1): one struct, of which each field can be used.

# COMMAND ----------

predict = udf(model=MODEL, repository=REPOSITORY)
texts.select("text", predict(col("text")).alias("prediction")).select("text", "prediction.*").show(5)
