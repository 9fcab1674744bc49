package vm

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Series returns the kernel series that can be built as User-Mode Linux, oldest first: those of Debian 12 and 13.
func Series() []string { return []string{"6.1", "6.12"} }

// Arm64 is what stands for a series for Debian 12's kernel for arm64, which QEMU runs.
const Arm64 = "arm64"

//go:embed linux.config
var common []byte

//go:embed node.config
var node []byte

//go:embed arm64.list
var arm64 []byte

// config returns the configuration of a series. Nodes of clusters run the newest one.
func config(series string) []byte {
	all := Series()
	switch series {
	case Arm64:
		return arm64
	case all[len(all)-1]:
		return slices.Concat(common, node)
	}
	return common
}

// recipe is part of the cache key. It changes when build.go, patch.go or debian.go makes another kernel from the same source and
// configuration.
func recipe(series string) string {
	if series == "6.12" {
		return "3"
	}
	return "2"
}

// CacheDir returns the folder of the kernels: $XDG_CACHE_HOME/sluice/vm, or ~/.cache/sluice/vm.
func CacheDir() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("vm: find the cache: %w", err)
	}
	return filepath.Join(dir, "sluice", "vm"), nil
}

// configHash covers everything that determines a kernel but the version of its source.
func configHash(series string) string {
	sum := sha256.Sum256([]byte("recipe " + recipe(series) + "\n" + strings.Join(options(series), "\n")))
	return hex.EncodeToString(sum[:6])
}

// options returns the lines of the configuration, without comments.
func options(series string) (out []string) {
	for line := range strings.Lines(string(config(series))) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			out = append(out, line)
		}
	}
	return out
}

// keyOf returns the cache key of a kernel from a version of Debian's package.
func keyOf(series, version string) string {
	return fmt.Sprintf("linux-%s_%s_%s", series, version, configHash(series))
}

// Cached returns the path of the newest kernel of a series that was built with the current configuration, "" if none.
func Cached(series string) (string, error) {
	if all := append(Series(), Arm64); !slices.Contains(all, series) {
		return "", fmt.Errorf("vm: kernel %q: there are %v", series, all)
	}
	dir, err := CacheDir()
	if err != nil {
		return "", err
	}
	found, err := filepath.Glob(filepath.Join(dir, keyOf(series, "*"), "linux"))
	if err != nil {
		return "", fmt.Errorf("vm: look for kernel %s: %w", series, err)
	}
	var newest string
	var at int64
	for _, path := range found {
		info, err := os.Stat(path)
		if err != nil {
			return "", fmt.Errorf("vm: look for kernel %s: %w", series, err)
		}
		if t := info.ModTime().UnixNano(); newest == "" || t > at {
			newest, at = path, t
		}
	}
	return newest, nil
}
