import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.flink.api.common.JobID;
import org.apache.flink.api.common.operators.MailboxExecutor;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.core.fs.FileSystem;
import org.apache.flink.core.fs.FileSystemFactory;
import org.apache.flink.core.fs.Path;
import org.apache.flink.core.fs.local.LocalFileSystem;
import org.apache.flink.core.plugin.PluginManager;
import org.apache.flink.runtime.metrics.groups.UnregisteredMetricGroups;
import org.apache.flink.runtime.state.KeyGroupRange;
import org.apache.flink.runtime.state.LocalRecoveryConfig;
import org.apache.flink.runtime.state.SnapshotResult;
import org.apache.flink.runtime.state.StreamStateHandle;
import org.apache.flink.runtime.state.changelog.ChangelogStateHandleStreamImpl;
import org.apache.flink.runtime.state.changelog.SequenceNumber;
import org.apache.flink.runtime.state.changelog.StateChange;
import org.apache.flink.runtime.state.changelog.StateChangelogStorage;
import org.apache.flink.runtime.state.changelog.StateChangelogStorageLoader;
import org.apache.flink.runtime.state.changelog.StateChangelogStorageView;
import org.apache.flink.runtime.state.changelog.StateChangelogWriter;
import org.apache.flink.runtime.state.filesystem.FileStateHandle;
import org.apache.flink.runtime.state.memory.ByteStreamStateHandle;
import org.apache.flink.util.CloseableIterator;
import org.apache.flink.util.function.ThrowingRunnable;

/**
 * Flink's own changelog storage behind lines of text; tests/flink/flink.py is the other end.
 *
 * <p>The storage and the view for recovery are made as a TaskManager makes them: by Flink's loader,
 * from a configuration and from the handle. Whatever goes wrong ends the program with a stack trace.
 *
 * <p>Arguments: {@code read} or {@code write}, then a directory for temporary files. Values are
 * Base64.
 *
 * <pre>
 * read, asked:     handle FIRST LAST SIZE             key groups and size of a handle, then its sets:
 *                  file OFFSET SIZE URI
 *                  bytes OFFSET VALUE
 * read, said:      handle                             then, change by change, in Flink's order:
 *                  change KEY_GROUP VALUE
 *                  cached FILES                       at the end: files in Flink's download cache
 *
 * write, asked:    option KEY VALUE                   before the first writer
 *                  writer FIRST LAST
 *                  append WRITER KEY_GROUP VALUE
 *                  meta WRITER VALUE
 *                  cut WRITER                         the next change starts a change set
 *                  persist CHECKPOINT                 all writers; waits for all
 *                  confirm | reset                    the checkpoint is complete, or was given up
 *                  materialize                        what was persisted leaves all later handles
 * write, said:     handle CHECKPOINT WRITER FIRST LAST SIZE
 *                  file OFFSET SIZE URI               one for each set
 *                  change KEY_GROUP VALUE             and what Flink reads through this handle
 * </pre>
 */
public class FlinkChangelog {
    /** Local files under a scheme that Flink takes for a remote one, so that it downloads them. */
    static final String REMOTE_SCHEME = "remote";

    static final String CACHE_FOLDER = "dstl-cache-file";

    final File temporary;
    final Configuration configuration = new Configuration();
    final BufferedReader in =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    final PrintStream out;

    FlinkChangelog(File temporary, PrintStream out) {
        this.temporary = temporary;
        this.out = out;
        configuration.setString("io.tmp.dirs", temporary.getPath());
        configuration.setString("state.changelog.storage", "filesystem");
    }

    public static void main(String[] arguments) throws Exception {
        PluginManager plugins = new RemoteFiles();
        FileSystem.initialize(new Configuration(), plugins);
        StateChangelogStorageLoader.initialize(plugins);
        try (PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8)) {
            FlinkChangelog program = new FlinkChangelog(new File(arguments[1]), out);
            if (arguments[0].equals("read")) {
                program.read();
            } else {
                new Writing(program).run();
            }
        }
        System.exit(0); // Flink's discard threads never end by themselves
    }

    /** Answers each handle with its changes. One view serves all, as all restores of a job. */
    void read() throws Exception {
        List<Tuple2<StreamStateHandle, Long>> sets = new ArrayList<>();
        String[] head = null;
        StateChangelogStorageView<ChangelogStateHandleStreamImpl> view = null;
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ", 4);
            if (words[0].equals("handle")) {
                view = head == null ? view : answer(view, head, sets);
                head = words;
                sets = new ArrayList<>();
            } else if (words[0].equals("file")) {
                Path path = new Path(URI.create(words[3]));
                StreamStateHandle file = new FileStateHandle(path, Long.parseLong(words[2]));
                sets.add(Tuple2.of(file, Long.parseLong(words[1])));
            } else if (words[0].equals("bytes")) {
                byte[] content = Base64.getDecoder().decode(words[2]);
                StreamStateHandle inline = new ByteStreamStateHandle("inline", content);
                sets.add(Tuple2.of(inline, Long.parseLong(words[1])));
            } else {
                throw new IllegalArgumentException(line);
            }
        }
        view = answer(view, head, sets);
        String[] cached = new File(temporary, CACHE_FOLDER).list();
        out.println("cached " + (cached == null ? 0 : cached.length));
        view.close();
    }

    StateChangelogStorageView<ChangelogStateHandleStreamImpl> answer(
            StateChangelogStorageView<ChangelogStateHandleStreamImpl> view,
            String[] head,
            List<Tuple2<StreamStateHandle, Long>> sets)
            throws Exception {
        KeyGroupRange keyGroups =
                KeyGroupRange.of(Integer.parseInt(head[1]), Integer.parseInt(head[2]));
        long size = Long.parseLong(head[3]);
        ChangelogStateHandleStreamImpl handle =
                new ChangelogStateHandleStreamImpl(sets, keyGroups, size, size, "filesystem");
        out.println("handle");
        StateChangelogStorageView<ChangelogStateHandleStreamImpl> open =
                view == null ? viewOf(handle) : view;
        printChanges(open, handle);
        return open;
    }

    @SuppressWarnings("unchecked")
    StateChangelogStorageView<ChangelogStateHandleStreamImpl> viewOf(
            ChangelogStateHandleStreamImpl handle) throws Exception {
        return (StateChangelogStorageView<ChangelogStateHandleStreamImpl>)
                StateChangelogStorageLoader.loadFromStateHandle(configuration, handle);
    }

    void printChanges(
            StateChangelogStorageView<ChangelogStateHandleStreamImpl> view,
            ChangelogStateHandleStreamImpl handle)
            throws Exception {
        try (CloseableIterator<StateChange> changes = view.createReader().getChanges(handle)) {
            while (changes.hasNext()) {
                StateChange change = changes.next();
                String value = Base64.getEncoder().encodeToString(change.getChange());
                out.println("change " + change.getKeyGroup() + " " + value);
            }
        }
    }

    /** Carries out what the lines say with writers of one storage. */
    static final class Writing {
        final FlinkChangelog program;
        final Mailbox mailbox = new Mailbox();
        final List<Writer> writers = new ArrayList<>();
        StateChangelogStorage<ChangelogStateHandleStreamImpl> storage;
        long checkpoint;

        Writing(FlinkChangelog program) {
            this.program = program;
        }

        void run() throws Exception {
            for (String line = program.in.readLine(); line != null; line = program.in.readLine()) {
                String[] words = line.split(" ", 4);
                switch (words[0]) {
                    case "option" -> program.configuration.setString(words[1], words[2]);
                    case "writer" -> create(Integer.parseInt(words[1]), Integer.parseInt(words[2]));
                    case "append" ->
                            writer(words[1])
                                    .log
                                    .append(
                                            Integer.parseInt(words[2]),
                                            Base64.getDecoder().decode(words[3]));
                    case "meta" ->
                            writer(words[1]).log.appendMeta(Base64.getDecoder().decode(words[2]));
                    case "cut" -> writer(words[1]).log.nextSequenceNumber();
                    case "persist" -> persist(Long.parseLong(words[1]));
                    case "confirm" ->
                            writers.forEach(w -> w.log.confirm(w.from, w.to, checkpoint));
                    case "reset" -> writers.forEach(w -> w.log.reset(w.from, w.to, checkpoint));
                    case "materialize" -> writers.forEach(Writer::materialize);
                    default -> throw new IllegalArgumentException(line);
                }
            }
            for (Writer writer : writers) {
                writer.log.close();
            }
            storage.close();
        }

        Writer writer(String number) {
            return writers.get(Integer.parseInt(number));
        }

        @SuppressWarnings("unchecked")
        void create(int first, int last) throws Exception {
            if (storage == null) {
                storage =
                        (StateChangelogStorage<ChangelogStateHandleStreamImpl>)
                                StateChangelogStorageLoader.load(
                                        new JobID(),
                                        program.configuration,
                                        UnregisteredMetricGroups
                                                .createUnregisteredTaskManagerJobMetricGroup(),
                                        LocalRecoveryConfig.BACKUP_AND_RECOVERY_DISABLED);
            }
            String name = "operator-" + writers.size();
            KeyGroupRange range = KeyGroupRange.of(first, last);
            writers.add(new Writer(storage.createWriter(name, range, mailbox)));
        }

        void persist(long number) throws Exception {
            checkpoint = number;
            List<CompletableFuture<SnapshotResult<ChangelogStateHandleStreamImpl>>> results =
                    new ArrayList<>();
            for (Writer writer : writers) {
                writer.to = writer.log.nextSequenceNumber();
                results.add(writer.log.persist(writer.from, number));
            }
            StateChangelogStorageView<ChangelogStateHandleStreamImpl> view = null;
            for (int index = 0; index < writers.size(); index++) {
                mailbox.runUntil(results.get(index));
                ChangelogStateHandleStreamImpl handle =
                        results.get(index).get().getJobManagerOwnedSnapshot();
                KeyGroupRange range = handle.getKeyGroupRange();
                program.out.println(
                        String.format(
                                "handle %d %d %d %d %d",
                                number,
                                index,
                                range.getStartKeyGroup(),
                                range.getEndKeyGroup(),
                                handle.getStateSize()));
                for (Tuple2<StreamStateHandle, Long> set : handle.getHandlesAndOffsets()) {
                    FileStateHandle file = (FileStateHandle) set.f0;
                    program.out.println(
                            String.format(
                                    "file %d %d %s",
                                    set.f1, file.getStateSize(), file.getFilePath().toUri()));
                }
                view = view == null ? program.viewOf(handle) : view;
                program.printChanges(view, handle);
            }
            view.close();
        }
    }

    /** One writer of Flink, and the range of its log that the last checkpoint asked for. */
    static final class Writer {
        final StateChangelogWriter<ChangelogStateHandleStreamImpl> log;
        SequenceNumber from;
        SequenceNumber to;

        Writer(StateChangelogWriter<ChangelogStateHandleStreamImpl> log) {
            this.log = log;
            this.from = log.initialSequenceNumber();
            this.to = from;
        }

        void materialize() {
            log.truncate(to);
            from = to;
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

    /** Brings the remote scheme to Flink, as a plugin would. */
    static final class RemoteFiles implements PluginManager, FileSystemFactory {
        @Override
        public <P> Iterator<P> load(Class<P> service) {
            return service == FileSystemFactory.class
                    ? Collections.singletonList(service.cast(this)).iterator()
                    : Collections.emptyIterator();
        }

        @Override
        public String getScheme() {
            return REMOTE_SCHEME;
        }

        @Override
        public FileSystem create(URI root) {
            return new LocalFileSystem() {
                @Override
                public boolean isDistributedFS() {
                    return true;
                }
            };
        }
    }
}
