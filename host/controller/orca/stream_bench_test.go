package orca

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/orcaserver"
)

// BenchmarkStreams opens streams to a server in a process of its own, and measures the memory of each one while it waits for its
// next report: with 10,000, -benchtime 10000x.
func BenchmarkStreams(b *testing.B) {
	server := exec.Command(os.Args[0])
	server.Env = append(os.Environ(), serveStreams+"=1")
	server.Stderr = os.Stderr
	stop, err := server.StdinPipe() // it serves until this is closed
	must(b, err)
	out, err := server.StdoutPipe()
	must(b, err)
	must(b, server.Start())
	defer func() { _ = stop.Close(); _ = server.Wait() }()
	line, err := bufio.NewReader(out).ReadString('\n')
	must(b, err)
	addr, err := netip.ParseAddrPort(line[:len(line)-1])
	must(b, err)

	ctx, cancel := context.WithCancel(b.Context())
	var streams, reported sync.WaitGroup
	defer streams.Wait()
	defer cancel()
	before := inUse()
	dials := make(chan struct{}, 100)
	reported.Add(b.N)
	for range b.N {
		dials <- struct{}{}
		streams.Go(func() {
			err := Stream(ctx, addr, 10*time.Second, func(*Report) { <-dials; reported.Done() })
			if ctx.Err() == nil {
				panic(err)
			}
		})
	}
	reported.Wait()
	b.ReportMetric(float64(inUse()-before)/float64(b.N), "B/stream")
	b.ReportMetric(float64(runtime.NumGoroutine())/float64(b.N), "goroutines/stream")
}

// inUse is the memory in use for the heap and for stacks, in bytes.
func inUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const serveStreams = "SLUICE_TEST_SERVE_STREAMS"

// TestMain runs tests, or the server of BenchmarkStreams in its process.
func TestMain(m *testing.M) {
	if os.Getenv(serveStreams) == "" {
		m.Run()
		return
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(l.Addr())
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); _ = answerOnce(c) }()
		}
	}()
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// answerOnce answers a stream with one report, and reads until the client ends.
func answerOnce(c net.Conn) error {
	if _, err := io.ReadFull(c, make([]byte, len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))); err != nil {
		return err
	}
	for head := make([]byte, 9); head[3] != 1; { // HEADERS
		if _, err := io.ReadFull(c, head); err != nil {
			return err
		}
		if _, err := io.CopyN(io.Discard, c, int64(binary.BigEndian.Uint32(head)>>8)); err != nil {
			return err
		}
	}
	frame := func(kind, flags, stream byte, payload string) string {
		return string([]byte{0, 0, byte(len(payload)), kind, flags, 0, 0, 0, stream}) + payload
	}
	_, err := io.WriteString(c, frame(4, 0, 0, "")+frame(4, 1, 0, "")+ // SETTINGS, and their acknowledgement
		frame(1, 4, 1, "\x88\x0f\x10\x10application/grpc")+ // :status 200, content-type
		frame(0, 0, 1, string(orcaserver.Frame(orcaserver.Number(1, .5)))))
	if err == nil {
		_, err = io.Copy(io.Discard, c)
	}
	return err
}
