"""``format("lodeq")``: Spark's data source, which returns the reader or writer for each call."""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from ...errors import UsageError
from .options import Options
from .schemas import TABLES, checked, spark_schema
from .stream import JournalReader, JournalStream
from .tables import PushingTableReader, TableReader
from .task_writer import TaskStreamWriter, TaskWriter

__all__ = ["DefaultSource", "PushingSource"]


class DefaultSource(DataSource):
    """Data source that Spark finds by name where the wheel is installed (``pyspark_lodeq``)."""

    PUSHES = False

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return "lodeq"

    def schema(self) -> StructType:
        """Return the schema of the table that is read."""
        options = Options(self.options)
        return spark_schema(self._table(options), options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader for ``spark.read``."""
        options = Options(self.options)
        table = self._table(options)
        wanted = checked(table, schema)
        if table == "journal":
            return JournalReader(options, wanted)
        if options.flag("pushdown", default=self.PUSHES):
            return PushingTableReader(table, options, wanted)
        return TableReader(table, options, wanted)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Return the reader for ``spark.readStream``."""
        options = Options(self.options)
        table = self._table(options)
        if table != "journal":
            raise UsageError(
                f"table {table!r} is not a stream: readStream reads the lifecycle journal, "
                '.option("table", "journal")'
            )
        return JournalStream(options, checked(table, schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer for ``df.write``."""
        return TaskWriter(Options(self.options), schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """Return the writer for ``df.writeStream``."""
        return TaskStreamWriter(Options(self.options), schema, overwrite=overwrite)

    def _table(self, options: Options) -> str:
        return options.choice("table", TABLES, "tasks")


class PushingSource(DefaultSource):
    """Data source that ``build_session`` registers: its sessions pass filters to the reader."""

    PUSHES = True
