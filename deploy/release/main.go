// Command release makes everything of a release from a clean clone, and verifies a release by making it again. The same commit,
// version and Go version give the same files on every machine, except for signatures.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	o := options{}
	flag.StringVar(&o.version, "version", "", "version, vMAJOR.MINOR.PATCH, with a section in CHANGELOG.md")
	flag.StringVar(&o.out, "o", "bin/release", "directory for the files; an existing release is replaced")
	flag.StringVar(&o.repository, "repository", "", "repository to which the image will be pushed, which the chart names, such as registry.example.com/sluice")
	flag.StringVar(&o.key, "key", "", "file of a private key in PEM, ed25519 or ECDSA P-256: signs the image, the provenance and SHA256SUMS")
	flag.StringVar(&o.vulndb, "vulndb", "", "database of govulncheck, a URL (default: that of the Go project)")
	flag.StringVar(&o.platforms, "platforms", "linux/amd64,linux/arm64", "platforms of the image")
	flag.StringVar(&o.compiled, "compiled", "linux/amd64,linux/arm64", "platforms for which the image has compiled plugins; for another architecture than this machine's, QEMU runs the compiler")
	flag.StringVar(&o.clients, "clients", "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64,windows/amd64", "platforms of the kubectl plugin")
	verify := flag.String("verify", "", "compare a release in this directory with one that is made now")
	flag.Parse()
	err := errors.New("unexpected arguments")
	switch {
	case flag.NArg() > 0:
	case *verify != "":
		err = verifyRelease(ctx, o, *verify)
	default:
		err = makeRelease(ctx, o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

type options struct {
	version, out, repository, key, vulndb, platforms, compiled, clients string

	again bool // to compare
}

// source is the clone that a release is made from.
type source struct {
	commit string
	at     time.Time // of the commit
}

var versionForm = regexp.MustCompile(`^v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?$`)

// readSource returns the commit that is checked out. Files that are not in it are an error: nobody could make the same release.
func readSource(ctx context.Context) (s source, err error) {
	status, err := output(ctx, "git", "status", "--porcelain")
	if err == nil && status != "" {
		err = fmt.Errorf("the clone is not clean:\n%s", status)
	}
	if err != nil {
		return s, err
	}
	text, err := output(ctx, "git", "log", "-1", "--format=%H %ct")
	if err != nil {
		return s, err
	}
	commit, at, _ := strings.Cut(text, " ")
	seconds, err := strconv.ParseInt(at, 10, 64)
	return source{commit, time.Unix(seconds, 0).UTC()}, err
}

// makeRelease makes a release in a new directory, and puts that in the place of an earlier one.
func makeRelease(ctx context.Context, o options) error {
	if !versionForm.MatchString(o.version) {
		return fmt.Errorf("-version %q: must be vMAJOR.MINOR.PATCH, as in make release VERSION=v0.2.0", o.version)
	}
	if o.repository == "" {
		return errors.New("-repository: required, where the image will be, as in make release REPOSITORY=registry.example.com/sluice")
	}
	s, err := readSource(ctx)
	if err != nil {
		return err
	}
	notes, err := notesOf(o.version)
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(o.out, sums)); err != nil && !empty(o.out) {
		return fmt.Errorf("-o: %s is neither empty nor a release; not replaced", o.out)
	}
	if err := os.MkdirAll(filepath.Dir(o.out), 0o755); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(filepath.Dir(o.out), ".release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	r := &release{options: o, source: s, dir: dir}
	if err := errors.Join(os.Chmod(dir, 0o755), r.write("release-notes.md", []byte(notes))); err != nil {
		return err
	}
	for _, step := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"vulnerabilities", r.vulnerabilities}, {"image", r.image}, {"kubectl-sluice", r.kubectl}, {"man pages", r.man},
		{"charts and kinds", r.charts}, {"provenance and checksums", r.provenance}, {"signatures", r.sign},
	} {
		fmt.Println("==", step.name)
		if err := step.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	if err := errors.Join(os.RemoveAll(o.out), os.Rename(dir, o.out)); err != nil || o.again {
		return err
	}
	signed := "not signed: no -key"
	if o.key != "" {
		signed = "signed"
	}
	fmt.Printf("%s: %s of commit %s, image %s@%s, %s\n", o.out, o.version, s.commit, o.repository, r.digest, signed)
	return nil
}

func empty(dir string) bool {
	list, err := os.ReadDir(dir)
	return len(list) == 0 && (err == nil || errors.Is(err, os.ErrNotExist))
}

// relative matches the beginning of a link to a file of the repository.
var relative = regexp.MustCompile(`\]\(([\w./-]+[)#])`)

// notesOf returns the section of a version in CHANGELOG.md, whose links lead to the files of that version.
func notesOf(version string) (string, error) {
	text, err := os.ReadFile("CHANGELOG.md")
	if err != nil {
		return "", err
	}
	core, _, _ := strings.Cut(strings.TrimPrefix(version, "v"), "-")
	var titles []string
	for section := range strings.SplitSeq("\n"+string(text), "\n## ") {
		title, rest, _ := strings.Cut(section, "\n")
		titles = append(titles, title)
		for word := range strings.FieldsSeq(title) {
			if word == core || word+".0" == core {
				return "# sluice " + version + "\n" + relative.ReplaceAllString(rest, "]("+project+"/blob/"+version+"/$1"), nil
			}
		}
	}
	return "", fmt.Errorf("CHANGELOG.md: no section about %s among %q: write what is new in it, and commit", core, titles[1:])
}

// release is a release that is being made, in a directory of its own.
type release struct {
	options
	source
	dir    string
	digest string // of the image's index
}

func (r *release) path(name string) string { return filepath.Join(r.dir, name) }

func (r *release) write(name string, text []byte) error {
	return os.WriteFile(r.path(name), text, 0o644)
}

// govulncheck is pinned: its database is what changes.
const govulncheck = "golang.org/x/vuln/cmd/govulncheck@v1.9.0"

// vulnerabilities fails if the programs call code with a known vulnerability.
func (r *release) vulnerabilities(ctx context.Context) error {
	if r.again {
		return nil // there may be new ones
	}
	args := []string{"run", govulncheck}
	if r.vulndb != "" {
		args = append(args, "-db", r.vulndb)
	}
	found, err := output(ctx, "go", append(args, "./cmd/...", "./plugins/...")...)
	if err != nil && found == "" {
		return fmt.Errorf("%w; no database, perhaps: make release VULNDB=URL has another one", err)
	} else if err != nil {
		return fmt.Errorf("%w\n%s", err, found)
	}
	return nil
}

// image builds the image, as make image does, and a software bill of materials of each platform.
func (r *release) image(ctx context.Context) (err error) {
	r.digest, err = output(ctx, "go", "run", "-trimpath", "./deploy/image", "-o", r.path("image"), "-tar", r.path("sluice-image.tar"), "-sbom", r.dir,
		"-platforms", r.platforms, "-compiled", r.compiled, "-version", r.version, "-revision", r.commit, "-time", strconv.FormatInt(r.at.Unix(), 10))
	return err
}

// kubectl builds the kubectl plugin for all platforms, and krew's manifest.
func (r *release) kubectl(ctx context.Context) error {
	return show(ctx, "go", "run", "-trimpath", "./deploy/krew", "-version", r.version, "-platforms", r.clients, "-o", r.dir)
}

// man writes the man pages.
func (r *release) man(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "man-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := show(ctx, "go", "run", "-trimpath", "-tags", "man", "./cmd/sluice", "man", dir); err != nil {
		return err
	}
	return r.archive("sluice-man.tar.gz", "man8", dir, nil)
}

func output(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), err
}

func show(ctx context.Context, name string, args ...string) error {
	out, err := output(ctx, name, args...)
	if out != "" {
		fmt.Println(out)
	}
	return err
}
