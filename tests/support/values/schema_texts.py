"""Schemas as text and the types in them, for the tests that read them with and without Spark."""

TEXTS = {
    "n long, total double": "bigint, double",
    "a boolean, b tinyint, c byte, d smallint, e short, f int, g integer, h bigint, i long": "boolean, tinyint, tinyint, smallint, smallint, int, int, bigint, bigint",
    "a float, b real, c double, d decimal, e decimal(12), f dec(12,4), g numeric(38,18)": "float, float, double, decimal(10,0), decimal(12,0), decimal(12,4), decimal(38,18)",
    "a date, b timestamp, c timestamp_ntz, d timestamp_ltz, e string, f binary, g void": "date, timestamp, timestamp_ntz, timestamp, string, binary, void",
    "a array<struct<b: int, c string>>, m map<string, array<map<int,date>>>, s struct<>": "array<struct<b:int,c:string>>, map<string,array<map<int,date>>>, struct<>",
    "`order id` long NOT NULL COMMENT 'the id', x STRING comment \"what\"": "bigint, string",
    "a interval day to second, b interval year to month, c interval hour, d INTERVAL DAY TO HOUR": "interval day to second, interval year to month, interval hour, interval day to hour",
    "struct<a: int, b: string>": "int, string",
    "a: int, b: array<int>": "int, array<int>",
    "date date, array array<int>, `struct` int": "date, array<int>, int",
    "a varchar(10), b char(3)": "varchar(10), char(3)",
}
