package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/lab/realcluster"
)

// options are what `up` was called with.
type options struct {
	Name       string
	Workers    int
	Kernel     string
	Family     realcluster.Family
	Proxy      realcluster.Proxy
	Mode       string
	Image, Tag string
	Repo       string
}

// state is the folder of a cluster, in the user's cache. The keeper, the process that the cluster ends with, holds a lock on a
// file of it.
type state struct{ dir string }

func open(name string) (state, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return state{}, fmt.Errorf("find the user's cache folder: %w", err)
	}
	if err := realcluster.CheckName(name); err != nil {
		return state{}, err
	}
	return state{filepath.Join(cache, "sluice", "clusters", name)}, nil
}

func (s state) file(name string) string { return filepath.Join(s.dir, name) }
func (s state) cluster() string         { return s.file("cluster") }
func (s state) kubeconfig() string      { return s.file("kubeconfig") }
func (s state) log() string             { return s.file("log") }

// lock is for the keeper. It holds the lock as long as the file is open.
func (s state) lock() (*os.File, error) {
	f, err := os.OpenFile(s.file("keeper"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = fmt.Fprintln(f, os.Getpid())
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return f, nil
}

// keeper returns the process ID of the keeper, 0 if there is none.
func (s state) keeper() (pid int) {
	f, err := os.Open(s.file("keeper"))
	if err != nil {
		return 0
	}
	defer f.Close()
	if unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) == nil {
		return 0
	}
	_, _ = fmt.Fscan(f, &pid)
	return pid
}

// options returns what the cluster was started with.
func (s state) options() (o options, err error) {
	data, err := os.ReadFile(s.file("options.json"))
	if err == nil {
		err = json.Unmarshal(data, &o)
	}
	return o, err
}

func (s state) save(o options) error {
	data, err := json.Marshal(o)
	if err != nil {
		return err
	}
	return os.WriteFile(s.file("options.json"), data, 0o600)
}

// clean stops the keeper and removes all that is left of the cluster.
func (s state) clean(name string) error {
	if pid := s.keeper(); pid != 0 {
		_ = unix.Kill(pid, unix.SIGTERM)
		for end := time.Now().Add(time.Minute); s.keeper() == pid; time.Sleep(50 * time.Millisecond) {
			if time.Now().After(end) {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
	}
	return errors.Join(realcluster.Clean(name, s.cluster()), os.RemoveAll(s.dir))
}

func (s state) exists() bool {
	_, err := os.Stat(s.dir)
	return !errors.Is(err, fs.ErrNotExist)
}
