import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;

import org.apache.kafka.common.utils.Exit;

/**
 * Runs the main methods of Kafka's tools one after another in one JVM, because a JVM's start costs
 * more than most tools do.
 *
 * <p>On stdin: the count of words, the words (class name, then arguments) and the tool's stdin, each
 * a length and bytes. On stdout, when the main method has returned or asked to exit: the exit code,
 * the tool's stdout and its stderr. A tool that calls Kafka's Exit is stopped there by an error; its
 * shutdown hooks run at its end.
 */
public final class ToolHost {
    private static final Redirected OUT = new Redirected();
    private static final Redirected ERR = new Redirected();
    private static final List<Runnable> HOOKS = new ArrayList<>();
    private static volatile Integer exitCode;
    private static volatile boolean exited;

    /** What a tool's call of Exit throws, so that nothing after it runs. */
    private static final class ToolExit extends Error {
        ToolExit() {
            super("the tool has called exit", null, false, false);
        }
    }

    /** Collects what a tool writes until it exits. */
    private static final class Redirected extends OutputStream {
        private ByteArrayOutputStream written = new ByteArrayOutputStream();

        @Override
        public synchronized void write(int value) {
            if (!exited) {
                written.write(value);
            }
        }

        @Override
        public synchronized void write(byte[] bytes, int start, int count) {
            if (!exited) {
                written.write(bytes, start, count);
            }
        }

        synchronized byte[] take() {
            byte[] taken = written.toByteArray();
            written = new ByteArrayOutputStream();
            return taken;
        }
    }

    private ToolHost() {
    }

    public static void main(String[] args) throws Exception {
        DataInputStream requests = new DataInputStream(new BufferedInputStream(System.in));
        DataOutputStream answers = new DataOutputStream(
            new BufferedOutputStream(new FileOutputStream(FileDescriptor.out)));
        System.setOut(new PrintStream(OUT, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(ERR, true, StandardCharsets.UTF_8));
        Exit.setExitProcedure((code, message) -> exit(code));
        Exit.setHaltProcedure((code, message) -> exit(code));
        Exit.setShutdownHookAdder((name, hook) -> HOOKS.add(hook));
        while (true) {
            int count;
            try {
                count = requests.readInt();
            } catch (EOFException end) {
                Runtime.getRuntime().halt(0);
                return;
            }
            String[] words = new String[count];
            for (int i = 0; i < count; i++) {
                words[i] = new String(readBytes(requests), StandardCharsets.UTF_8);
            }
            int code = run(words, readBytes(requests));
            answers.writeInt(code);
            writeBytes(answers, OUT.take());
            writeBytes(answers, ERR.take());
            answers.flush();
        }
    }

    private static int run(String[] words, byte[] stdin) throws InterruptedException {
        exitCode = null;
        System.setIn(new ByteArrayInputStream(stdin));
        Thread tool = new Thread(() -> call(words), words[0]);
        tool.start();
        tool.join();
        exited = false;
        for (Runnable hook : HOOKS) {
            hook.run();
        }
        HOOKS.clear();
        System.out.flush();
        System.err.flush();
        return exitCode == null ? 0 : exitCode;
    }

    private static void call(String[] words) {
        String[] arguments = new String[words.length - 1];
        System.arraycopy(words, 1, arguments, 0, arguments.length);
        try {
            Class.forName(words[0]).getMethod("main", String[].class)
                .invoke(null, (Object) arguments);
        } catch (InvocationTargetException thrown) {
            if (!exited) {
                thrown.getCause().printStackTrace();
                exitCode = 1;
            }
        } catch (ReflectiveOperationException wrong) {
            wrong.printStackTrace();
            exitCode = 1;
        }
    }

    private static void exit(int code) {
        System.out.flush();
        System.err.flush();
        if (exitCode == null) {
            exitCode = code;
            exited = true;
        }
        throw new ToolExit();
    }

    private static byte[] readBytes(DataInputStream from) throws IOException {
        return from.readNBytes(from.readInt());
    }

    private static void writeBytes(DataOutputStream to, byte[] bytes) throws IOException {
        to.writeInt(bytes.length);
        to.write(bytes);
    }
}
