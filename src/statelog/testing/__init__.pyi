"""What users test with."""

from statelog.extensions.testing.processor_tester import ProcessorTester as ProcessorTester
