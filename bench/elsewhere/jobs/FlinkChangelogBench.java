import java.io.File;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.Locale;
import java.util.Random;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.flink.api.common.JobID;
import org.apache.flink.api.common.operators.MailboxExecutor;
import org.apache.flink.changelog.fs.FsStateChangelogStorage;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.runtime.metrics.groups.UnregisteredMetricGroups;
import org.apache.flink.runtime.state.KeyGroupRange;
import org.apache.flink.runtime.state.LocalRecoveryConfig;
import org.apache.flink.runtime.state.SnapshotResult;
import org.apache.flink.runtime.state.changelog.ChangelogStateHandleStreamImpl;
import org.apache.flink.runtime.state.changelog.SequenceNumber;
import org.apache.flink.runtime.state.changelog.StateChange;
import org.apache.flink.runtime.state.changelog.StateChangelogWriter;
import org.apache.flink.util.CloseableIterator;
import org.apache.flink.util.function.ThrowingRunnable;

/**
 * Flink's own changelog storage on the cases of bench/changelog.py; bench/elsewhere/flink_changelog.py starts it.
 *
 * <p>Each case runs twice to warm the JVM up and then five times, each time in a fresh folder. The values are
 * made before the clock starts, half random and half words of a dictionary. The storage has Flink's defaults, but
 * for the delay before an upload (10 ms, or none) and compression. A persist waits for its upload, as
 * a checkpoint does.
 *
 * <p>Argument: a folder. Prints a line for each case: its name, then the figure of each run.
 */
public class FlinkChangelogBench {
    static final KeyGroupRange ALL = KeyGroupRange.of(0, 127);
    static final int WARM = 2;
    static final int RUNS = 5;

    final File root;
    final Random random = new Random(42);

    FlinkChangelogBench(File root) {
        this.root = root;
    }

    public static void main(String[] arguments) throws Exception {
        Locale.setDefault(Locale.ROOT);
        FlinkChangelogBench bench = new FlinkChangelogBench(new File(arguments[0]));
        for (boolean isDelayed : new boolean[] {true, false}) {
            String delay = isDelayed ? "" : "no-delay-";
            bench.measure(
                    delay + "write-100", () -> bench.write(100, 5_000_000, 100_000, isDelayed));
            bench.measure(
                    delay + "write-1k", () -> bench.write(1024, 500_000, 50_000, isDelayed));
            bench.persists(delay + "persist", isDelayed);
            bench.measure(delay + "persist-16", () -> bench.sixteenWriters(isDelayed));
        }
        bench.measure("read-plain", () -> bench.read(false));
        bench.measure("read-snappy", () -> bench.read(true));
        System.exit(0); // Flink's discard threads never end by themselves
    }

    /** Prints the figures of a case. */
    void measure(String name, Case run) throws Exception {
        StringBuilder line = new StringBuilder(name);
        for (int number = -WARM; number < RUNS; number++) {
            double figure = run.figure();
            if (number >= 0) {
                line.append(String.format(" %.4f", figure));
            }
        }
        System.out.println(line);
    }

    /** Million changes per second, with a checkpoint every so many changes. */
    double write(int length, int total, int every, boolean isDelayed) throws Exception {
        byte[][] values = values(every, length);
        try (Place place = new Place(isDelayed, false)) {
            Writer writer = place.writer(0);
            long started = System.nanoTime();
            for (int checkpoint = 0; checkpoint < total / every; checkpoint++) {
                for (int index = 0; index < every; index++) {
                    // Flink's reader and writer keep the array, so each change has one of its own.
                    writer.log.append(index & 127, values[index].clone());
                }
                writer.checkpoint(checkpoint);
            }
            return total / seconds(started) / 1e6;
        }
    }

    /** Prints the median and the 99th percentile of persists of 1,000 changes, in ms, run by run. */
    void persists(String name, boolean isDelayed) throws Exception {
        double[] medians = new double[RUNS];
        double[] tails = new double[RUNS];
        byte[][] values = values(1_000, 100);
        for (int run = -WARM; run < RUNS; run++) {
            double[] times = new double[300];
            try (Place place = new Place(isDelayed, false)) {
                Writer writer = place.writer(0);
                for (int checkpoint = 0; checkpoint < times.length; checkpoint++) {
                    for (int index = 0; index < values.length; index++) {
                        writer.log.append(index & 127, values[index]);
                    }
                    long started = System.nanoTime();
                    writer.persist(checkpoint).get();
                    times[checkpoint] = seconds(started) * 1e3;
                    writer.confirm(checkpoint);
                }
            }
            Arrays.sort(times);
            if (run >= 0) {
                medians[run] = times[times.length / 2];
                tails[run] = times[times.length * 99 / 100];
            }
        }
        System.out.println(name + "-p50" + joined(medians));
        System.out.println(name + "-p99" + joined(tails));
    }

    /** Milliseconds until sixteen writers of 100 changes each have persisted at once, median of thirty. */
    double sixteenWriters(boolean isDelayed) throws Exception {
        byte[][] values = values(100, 100);
        double[] times = new double[30];
        try (Place place = new Place(isDelayed, false)) {
            List<Writer> writers = new ArrayList<>();
            for (int number = 0; number < 16; number++) {
                writers.add(place.writer(number));
            }
            for (int checkpoint = 0; checkpoint < times.length; checkpoint++) {
                for (Writer writer : writers) {
                    for (int index = 0; index < values.length; index++) {
                        writer.log.append(index & 127, values[index]);
                    }
                }
                long started = System.nanoTime();
                List<CompletableFuture<?>> results = new ArrayList<>();
                for (Writer writer : writers) {
                    results.add(writer.started(checkpoint));
                }
                for (CompletableFuture<?> result : results) {
                    place.mailbox.runUntil(result);
                }
                times[checkpoint] = seconds(started) * 1e3;
                for (Writer writer : writers) {
                    writer.confirm(checkpoint);
                }
            }
        }
        Arrays.sort(times);
        return times[times.length / 2];
    }

    /** Million changes per second that Flink reads one by one from a handle. */
    double read(boolean isCompressed) throws Exception {
        int total = 2_000_000;
        byte[][] values = values(50_000, 100);
        try (Place place = new Place(false, isCompressed)) {
            Writer writer = place.writer(0);
            for (int index = 0; index < total; index++) {
                writer.log.append(index & 127, values[index % values.length]);
            }
            ChangelogStateHandleStreamImpl handle =
                    writer.persist(0).get().getJobManagerOwnedSnapshot();
            long started = System.nanoTime();
            int count = 0;
            try (CloseableIterator<StateChange> changes =
                    place.storage.createReader().getChanges(handle)) {
                while (changes.hasNext()) {
                    count += changes.next().getChange().length > 0 ? 1 : 0;
                }
            }
            if (count != total) {
                throw new IllegalStateException("read " + count + " changes of " + total);
            }
            return total / seconds(started) / 1e6;
        }
    }

    byte[][] values(int count, int length) {
        byte[][] words = new byte[256][8];
        for (byte[] word : words) {
            random.nextBytes(word);
        }
        byte[][] values = new byte[count][length];
        for (byte[] value : values) {
            random.nextBytes(value);
            for (int at = length / 2; at < length; at += 8) {
                System.arraycopy(words[random.nextInt(256)], 0, value, at, Math.min(8, length - at));
            }
        }
        return values;
    }

    static double seconds(long started) {
        return (System.nanoTime() - started) / 1e9;
    }

    static String joined(double[] figures) {
        StringBuilder line = new StringBuilder();
        for (double figure : figures) {
            line.append(String.format(" %.4f", figure));
        }
        return line.toString();
    }

    /** One run of a case. */
    interface Case {
        double figure() throws Exception;
    }

    /** A storage in a fresh folder, and the mailbox of the task's thread. */
    final class Place implements AutoCloseable {
        final Mailbox mailbox = new Mailbox();
        final java.nio.file.Path folder;
        final FsStateChangelogStorage storage;

        Place(boolean isDelayed, boolean isCompressed) throws Exception {
            folder = Files.createTempDirectory(root.toPath(), "run");
            Configuration configuration = new Configuration();
            configuration.setString("state.changelog.storage", "filesystem");
            configuration.setString("dstl.dfs.base-path", folder.toUri().toString());
            configuration.setString("dstl.dfs.compression.enabled", String.valueOf(isCompressed));
            if (!isDelayed) {
                configuration.setString("dstl.dfs.batch.persist-delay", "0 ms");
            }
            storage =
                    new FsStateChangelogStorage(
                            new JobID(),
                            configuration,
                            UnregisteredMetricGroups.createUnregisteredTaskManagerJobMetricGroup(),
                            LocalRecoveryConfig.BACKUP_AND_RECOVERY_DISABLED);
        }

        Writer writer(int number) {
            return new Writer(storage.createWriter("operator-" + number, ALL, mailbox), mailbox);
        }

        @Override
        public void close() throws Exception {
            storage.close();
            try (var paths = Files.walk(folder)) {
                paths.sorted(Comparator.reverseOrder()).map(java.nio.file.Path::toFile)
                        .forEach(File::delete);
            }
        }
    }

    /** A writer, and the range of its log that the last checkpoint asked for. */
    static final class Writer {
        final StateChangelogWriter<ChangelogStateHandleStreamImpl> log;
        final Mailbox mailbox;
        SequenceNumber from;
        SequenceNumber to;

        Writer(StateChangelogWriter<ChangelogStateHandleStreamImpl> log, Mailbox mailbox) {
            this.log = log;
            this.mailbox = mailbox;
            this.from = log.initialSequenceNumber();
        }

        CompletableFuture<SnapshotResult<ChangelogStateHandleStreamImpl>> started(long checkpoint)
                throws Exception {
            to = log.nextSequenceNumber();
            return log.persist(from, checkpoint);
        }

        CompletableFuture<SnapshotResult<ChangelogStateHandleStreamImpl>> persist(long checkpoint)
                throws Exception {
            CompletableFuture<SnapshotResult<ChangelogStateHandleStreamImpl>> result =
                    started(checkpoint);
            mailbox.runUntil(result);
            return result;
        }

        void confirm(long checkpoint) {
            log.confirm(from, to, checkpoint);
            log.truncate(to);
            from = to;
        }

        void checkpoint(long number) throws Exception {
            persist(number);
            confirm(number);
        }
    }

    /** The task's thread: mail is run by whoever waits for a result. */
    static final class Mailbox implements MailboxExecutor {
        final BlockingQueue<ThrowingRunnable<? extends Exception>> mail =
                new LinkedBlockingQueue<>();

        void runUntil(CompletableFuture<?> result) throws Exception {
            while (!result.isDone()) {
                ThrowingRunnable<? extends Exception> letter = mail.poll(60, TimeUnit.SECONDS);
                if (letter == null) {
                    throw new IllegalStateException("no upload ended within a minute");
                }
                letter.run();
            }
        }

        @Override
        public void execute(
                MailOptions options,
                ThrowingRunnable<? extends Exception> command,
                String description,
                Object... arguments) {
            mail.add(command);
        }

        @Override
        public void yield() {
            throw new UnsupportedOperationException();
        }

        @Override
        public boolean tryYield() {
            return false;
        }

        @Override
        public boolean shouldInterrupt() {
            return false;
        }
    }
}
