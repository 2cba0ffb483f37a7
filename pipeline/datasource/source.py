"""``format("lodeq")``: what Spark asks for, handed to who does it."""

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
from .sink import TaskStreamWriter, TaskWriter
from .stream import JournalReader, JournalStream
from .tables import PushingTableReader, TableReader

__all__ = ["DefaultSource", "PushingSource"]


class DefaultSource(DataSource):
    """Found by name where the wheel is installed (``pyspark_lodeq``)."""

    PUSHES = False

    @classmethod
    def name(cls) -> str:
        """What ``format`` takes."""
        return "lodeq"

    def schema(self) -> StructType:
        """Of the table that is read."""
        options = Options(self.options)
        return spark_schema(self._table(options), options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """For ``spark.read``."""
        options = Options(self.options)
        table = self._table(options)
        wanted = checked(table, schema)
        if table == "journal":
            return JournalReader(options, wanted)
        if options.flag("pushdown", default=self.PUSHES):
            return PushingTableReader(table, options, wanted)
        return TableReader(table, options, wanted)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """For ``spark.readStream``."""
        options = Options(self.options)
        table = self._table(options)
        if table != "journal":
            raise UsageError(
                f"table {table!r} is no stream: readStream reads the lifecycle journal, "
                '.option("table", "journal")'
            )
        return JournalStream(options, checked(table, schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """For ``df.write``."""
        return TaskWriter(Options(self.options), schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """For ``df.writeStream``."""
        return TaskStreamWriter(Options(self.options), schema, overwrite=overwrite)

    def _table(self, options: Options) -> str:
        return options.choice("table", TABLES, "tasks")


class PushingSource(DefaultSource):
    """As ``build_session`` registers it: in its sessions Spark hands filters down."""

    PUSHES = True
