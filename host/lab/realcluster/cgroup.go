package realcluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// cgroup is a folder of a hierarchy of cgroup v1.
type cgroup struct {
	Hierarchy string // its controllers, as /proc/self/cgroup has them: "cpu,cpuacct", or "name=systemd"
	Path      string
}

// cgroupName is the name of a node's cgroups; neither name has a dot.
func cgroupName(cluster, node string) string { return "sluice." + cluster + "." + node }

// nodeCgroups returns this process's cgroups, in which nodes have theirs.
func nodeCgroups() (out []cgroup, err error) {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(own)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 || parts[1] == "" {
			continue // cgroup v2
		}
		if at := mounted(string(mounts), parts[1], parts[2]); at != "" {
			out = append(out, cgroup{parts[1], at})
		}
	}
	if len(out) == 0 {
		return nil, errors.New("no hierarchies of cgroup v1 in /proc/self/mountinfo: nodes on cgroup v2 are not supported")
	}
	return out, nil
}

// mounted returns the folder of a cgroup in a hierarchy, by the mounts of /proc/self/mountinfo.
func mounted(mounts, hierarchy, path string) string {
	for line := range strings.Lines(mounts) {
		fields, super, _ := strings.Cut(strings.TrimSpace(line), " - ")
		f, s := strings.Fields(fields), strings.Fields(super)
		if len(f) < 5 || len(s) < 3 || s[0] != "cgroup" {
			continue
		}
		options := strings.Split(s[2], ",")
		all := !slices.ContainsFunc(strings.Split(hierarchy, ","), func(c string) bool { return !slices.Contains(options, c) })
		rest, inside := strings.CutPrefix(path, strings.TrimSuffix(f[3], "/"))
		if all && inside {
			return filepath.Join(f[4], rest)
		}
	}
	return ""
}

// makeCgroups creates a node's cgroups.
func makeCgroups(parents []cgroup, name string) (out []cgroup, err error) {
	for _, g := range parents {
		at := filepath.Join(g.Path, name)
		if err := os.Mkdir(at, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("make a cgroup: %w", err)
		}
		// A new cpuset has none.
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			value, err := os.ReadFile(filepath.Join(g.Path, file))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err == nil {
				err = os.WriteFile(filepath.Join(at, file), value, 0)
			}
			if err != nil {
				return nil, fmt.Errorf("set up cgroup %s: %w", at, err)
			}
		}
		out = append(out, cgroup{g.Hierarchy, at})
	}
	return out, nil
}

// removeCgroup removes a cgroup and those in it. Its processes may have been killed just now.
func removeCgroup(path string) error {
	var dirs []string
	err := filepath.WalkDir(path, func(at string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, at)
		}
		return nil
	})
	for _, at := range slices.Backward(dirs) {
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			rerr := syscall.Rmdir(at)
			if rerr == nil || errors.Is(rerr, syscall.ENOENT) {
				break
			}
			if time.Now().After(end) {
				err = errors.Join(err, fmt.Errorf("remove cgroup %s: %w", at, rerr))
				break
			}
		}
	}
	return err
}
