package realcluster

import (
	"bufio"
	"crypto/subtle"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// remoteEnv has a remote, as JSON, in the environment of a process that runs a command in a guest.
const remoteEnv = "SLUICE_REALCLUSTER_REMOTE"

// commandPort is where a guest accepts commands.
const commandPort = 1

// remote is a command to run in a guest.
type remote struct {
	At    netip.AddrPort
	Token string // Pods can reach the port too
	Args  []string
}

// Frames go both ways: kind, length, bytes. The caller sends the command, then its input, an empty frame at its end.
const (
	commandFrame byte = iota
	stdinFrame
	stdoutFrame
	stderrFrame
	exitFrame // an error code of four bytes
)

// maxFrame is more than any frame has: io.Copy writes 32 KiB at a time.
const maxFrame = 1 << 20

// frames are the frames of a connection. Writes may be concurrent.
type frames struct {
	net.Conn
	in *bufio.Reader
	mu sync.Mutex
}

func newFrames(c net.Conn) *frames { return &frames{Conn: c, in: bufio.NewReader(c)} }

func (f *frames) send(kind byte, p []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := f.Conn.Write(append(binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(p))), p...))
	return err
}

func (f *frames) receive() (kind byte, p []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(f.in, head[:]); err != nil {
		return 0, nil, err
	}
	size := binary.BigEndian.Uint32(head[1:])
	if size > maxFrame {
		return 0, nil, errors.New("the frame is too large")
	}
	p = make([]byte, size)
	_, err = io.ReadFull(f.in, p)
	return head[0], p, err
}

// stream writes frames of one kind.
type stream struct {
	*frames
	kind byte
}

func (s stream) Write(p []byte) (int, error) { return len(p), s.send(s.kind, p) }

// serveCommands runs the commands of connections that know the token.
func serveCommands(l net.Listener, token string) error {
	for {
		conn, err := l.Accept()
		if err != nil {
			return fmt.Errorf("accept commands: %w", err)
		}
		go serveCommand(newFrames(conn), token)
	}
}

func serveCommand(f *frames, token string) {
	defer f.Close()
	_, p, err := f.receive()
	var r remote
	if err != nil || json.Unmarshal(p, &r) != nil || subtle.ConstantTimeCompare([]byte(r.Token), []byte(token)) != 1 || len(r.Args) == 0 {
		return
	}
	cmd := exec.Command(r.Args[0], r.Args[1:]...)
	cmd.Stdout, cmd.Stderr = stream{f, stdoutFrame}, stream{f, stderrFrame}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = time.Second // its children may go on with its output
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		_ = f.send(stderrFrame, fmt.Appendln(nil, err))
		_ = f.send(exitFrame, binary.BigEndian.AppendUint32(nil, 127))
		return
	}
	go func() {
		for {
			_, p, err := f.receive()
			switch {
			case err != nil: // the caller has gone
				_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
				return
			case len(p) == 0:
				stdin.Close()
			default:
				_, _ = stdin.Write(p) // it fails if the command does not read
			}
		}
	}()
	_ = cmd.Wait()
	code := cmd.ProcessState.ExitCode()
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		code = 128 + int(status.Signal())
	}
	_ = f.send(exitFrame, binary.BigEndian.AppendUint32(nil, uint32(code)))
}

// enterRemote does not return in a process that runs a command in a guest.
func enterRemote() {
	text := os.Getenv(remoteEnv)
	if text == "" {
		return
	}
	var r remote
	err := json.Unmarshal([]byte(text), &r)
	code := 1
	if err == nil {
		code, err = r.run(os.Stdin, os.Stdout, os.Stderr)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// run runs the command in the guest and returns its exit code, 128 + n if signal n ended it.
func (r remote) run(stdin io.Reader, stdout, stderr io.Writer) (int, error) {
	conn, err := net.DialTimeout("tcp", r.At.String(), 10*time.Second)
	if err != nil {
		return 0, err
	}
	return r.ask(conn, stdin, stdout, stderr)
}

// ask is run on a connection, which it closes.
func (r remote) ask(conn net.Conn, stdin io.Reader, stdout, stderr io.Writer) (int, error) {
	f := newFrames(conn)
	defer f.Close()
	command, err := json.Marshal(r)
	if err == nil {
		err = f.send(commandFrame, command)
	}
	if err != nil {
		return 0, err
	}
	go func() {
		_, _ = io.Copy(stream{f, stdinFrame}, stdin)
		_ = f.send(stdinFrame, nil)
	}()
	for {
		kind, p, err := f.receive()
		if err != nil {
			return 0, fmt.Errorf("the guest has gone, or refuses: %w", err)
		}
		switch kind {
		case stdoutFrame:
			_, err = stdout.Write(p)
		case stderrFrame:
			_, err = stderr.Write(p)
		case exitFrame:
			return int(binary.BigEndian.Uint32(p)), nil
		}
		if err != nil {
			return 0, err
		}
	}
}
