package testcluster

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// process is one of the programs. It can be restarted with the same arguments.
type process struct {
	name string
	path string
	args []string
	log  string // its file
	host *testnet.Host

	life *testnet.Program // the present one, or the last; nil: not started yet
}

// start starts the program in its namespace.
func (p *process) start() error {
	file, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer file.Close()
	cmd := exec.Command(p.path, p.args...)
	cmd.Dir = filepath.Dir(p.log)
	cmd.Env = []string{"HOME=" + cmd.Dir, "PATH=" + os.Getenv("PATH"), "TMPDIR=" + os.TempDir()}
	cmd.Stdout, cmd.Stderr = file, file
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for the test
	life, err := p.host.Start(cmd)
	if err != nil {
		return err
	}
	p.life = life
	return nil
}

func (p *process) running() bool {
	if p == nil || p.life == nil {
		return false
	}
	select {
	case <-p.life.Ended():
		return false
	default:
		return true
	}
}

// kill kills the program and waits for its end.
func (p *process) kill() {
	if p.running() {
		p.life.Kill()
	}
}

// logSize returns the size of the log.
func (p *process) logSize() int64 {
	info, err := os.Stat(p.log)
	if err != nil {
		return 0
	}
	return info.Size()
}

// tail returns the last lines of the log after an offset, at most 16 KiB.
func (p *process) tail(from int64) string {
	f, err := os.Open(p.log)
	if err != nil {
		return ""
	}
	defer f.Close()
	skipped := false
	if least := p.logSize() - 16<<10; from < least {
		from, skipped = least, true
	}
	if _, err := f.Seek(from, io.SeekStart); err != nil {
		return ""
	}
	text, _ := io.ReadAll(f)
	if skipped {
		if _, rest, ok := bytes.Cut(text, []byte("\n")); ok {
			text = rest
		}
	}
	return strings.TrimSpace(string(text))
}

// inNamespace runs f in the namespace of a host, or in the present one if h is nil.
func inNamespace(h *testnet.Host, f func() error) error {
	if h == nil {
		return f()
	}
	return h.Do(f)
}
