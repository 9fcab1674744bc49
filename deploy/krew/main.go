// Command krew builds kubectl-sluice for each platform, and writes the archives and the manifest that krew installs it from.
package main

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

const homepage = "https://github.com/sluice-proxy/sluice"

type object = map[string]any

func main() {
	version := flag.String("version", "", "version, vMAJOR.MINOR.PATCH")
	dir := flag.String("o", "bin/krew", "directory of the archives and of sluice.yaml")
	url := flag.String("url", homepage+"/releases/download", "address at which the archives will be, without /VERSION/FILE")
	platforms := flag.String("platforms", "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64,windows/amd64", "platforms of client machines")
	flag.Parse()
	if err := run(*version, *dir, *url, strings.Split(*platforms, ",")); err != nil {
		fmt.Fprintln(os.Stderr, "krew:", err)
		os.Exit(1)
	}
}

func run(version, dir, url string, platforms []string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var all []object
	for _, name := range platforms {
		system, arch, _ := strings.Cut(name, "/")
		p := [2]string{system, arch}
		program := "kubectl-sluice"
		if p[0] == "windows" {
			program += ".exe"
		}
		file := fmt.Sprintf("kubectl-sluice_%s_%s.tar.gz", p[0], p[1])
		digest, err := archive(filepath.Join(dir, file), program, p, version)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, object{
			"selector": object{"matchLabels": object{"os": p[0], "arch": p[1]}},
			"uri":      url + "/" + version + "/" + file, "sha256": digest, "bin": program,
		})
	}
	manifest, err := yaml.Marshal(object{
		"apiVersion": "krew.googlecontainertools.github.com/v1alpha2", "kind": "Plugin", "metadata": object{"name": "sluice"},
		"spec": object{
			"version": version, "homepage": homepage, "platforms": all,
			"shortDescription": "Show the state of the Service proxy sluice on all nodes",
			"description": "Shows the state of the Service proxy sluice on all nodes in one table, why the endpoints of a\n" +
				"Service get their shares, what happens to a connection, and what drains.\n",
			"caveats": "Needs sluice with stateBindAddress and the RBAC of its component kubectl:\n" + homepage + "/blob/main/cmd/kubectl-sluice/README.md\n",
		},
	})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "sluice.yaml"), manifest, 0o644)
}

// archive writes an archive with the program and the license, and returns its digest. The same sources give the same archive.
func archive(path, program string, platform [2]string, version string) (digest string, err error) {
	temp, err := os.MkdirTemp("", "krew-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(temp)
	built := filepath.Join(temp, program)
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -X main.version="+version, "-o", built, "./cmd/kubectl-sluice")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+platform[0], "GOARCH="+platform[1])
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return "", err
	}
	f, err := os.Create(path)
	if err != nil {
		return "", err
	}
	hash := sha256.New()
	zip := gzip.NewWriter(io.MultiWriter(f, hash))
	out := tar.NewWriter(zip)
	for _, entry := range []struct {
		name, from string
		mode       int64
	}{{program, built, 0o755}, {"LICENSE", "LICENSE", 0o644}} {
		text, err := os.ReadFile(entry.from)
		if err != nil {
			return "", err
		}
		header := &tar.Header{Name: entry.name, Mode: entry.mode, Size: int64(len(text)), ModTime: time.Unix(0, 0)}
		if err := errors.Join(out.WriteHeader(header), write(out, text)); err != nil {
			return "", err
		}
	}
	if err := errors.Join(out.Close(), zip.Close(), f.Close()); err != nil {
		return "", err
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

func write(w io.Writer, text []byte) error {
	_, err := w.Write(text)
	return err
}
