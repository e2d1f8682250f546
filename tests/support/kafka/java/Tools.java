import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;

import org.apache.kafka.common.utils.internals.Exit;

/**
 * Runs the main methods of Kafka's tools one after another in one JVM, because a JVM's start costs
 * more than most tools do. A tool that calls Kafka's Exit is stopped there by an error; its shutdown
 * hooks run at its end.
 */
public final class Tools {
    private static final Redirected OUT = new Redirected();
    private static final Redirected ERR = new Redirected();
    private static final List<Runnable> HOOKS = new ArrayList<>();
    private static volatile Integer exitCode;
    private static volatile boolean exited;

    static {
        System.setOut(new PrintStream(OUT, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(ERR, true, StandardCharsets.UTF_8));
        Exit.setExitProcedure((code, message) -> exit(code));
        Exit.setHaltProcedure((code, message) -> exit(code));
        Exit.setShutdownHookAdder((name, hook) -> HOOKS.add(hook));
    }

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

    private Tools() {
    }

    /** The exit code, stdout and stderr of a class's main method, called with these words. */
    public static Object[] call(String name, List<String> words, byte[] stdin)
        throws InterruptedException {
        exitCode = null;
        OUT.take();
        ERR.take();
        System.setIn(new ByteArrayInputStream(stdin));
        Thread tool = new Thread(() -> call(name, words.toArray(String[]::new)), name);
        tool.start();
        tool.join();
        exited = false;
        HOOKS.forEach(Runnable::run);
        HOOKS.clear();
        System.out.flush();
        System.err.flush();
        return new Object[] {exitCode == null ? 0 : exitCode, OUT.take(), ERR.take()};
    }

    private static void call(String name, String[] words) {
        try {
            Class.forName(name).getMethod("main", String[].class).invoke(null, (Object) words);
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
}
