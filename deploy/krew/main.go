// Command krew builds kubectl-sluice for each platform, and writes the archives and the manifest that krew installs it from.
package main

import (
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/sluice-proxy/sluice/deploy/image/oci"
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
	body, err := os.ReadFile(built)
	if err != nil {
		return "", err
	}
	license, err := os.ReadFile("LICENSE")
	if err != nil {
		return "", err
	}
	files := []oci.File{{Name: program, Mode: 0o755, Body: body}, {Name: "LICENSE", Mode: 0o644, Body: license}}
	packed, err := oci.Pack(files, time.Time{})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(packed)
	return hex.EncodeToString(sum[:]), os.WriteFile(path, packed, 0o644)
}
