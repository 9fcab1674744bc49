// Package scaffold makes folders with new plugins, and builds them.
package scaffold

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"text/template"

	"sigs.k8s.io/yaml"

	"github.com/sluice-proxy/sluice/sdk/assemblyscript"
	"github.com/sluice-proxy/sluice/sdk/c"
	"github.com/sluice-proxy/sluice/sdk/rust"
)

// templates has a folder for what all languages have, and one for each language. A name without its suffix .tmpl is that of the
// file; gitignore is .gitignore, and npmrc is .npmrc.
//
//go:embed all:templates
var templates embed.FS

// Plugin is a plugin to make.
type Plugin struct {
	Name string   // see CheckName
	Lang Language // of Languages
	SDK  SDK      // for Go
	// Empty: a plugin that changes nothing, without settings, to begin with. Otherwise it is an example.
	Empty bool
}

// Templates are the names of what new plugins begin with: with settings, state over time and tests of both, or with nothing.
var Templates = []string{"example", "empty"}

// SDK is the Go SDK that a plugin uses: a version of Module, or its folder in a checkout of Repository.
type SDK struct {
	Version string // such as v1.2.3; "": Dir
	Dir     string // absolute path
}

// Module is the Go module of the SDK, in the folder sdk of Repository.
const (
	Repository = "github.com/sluice-proxy/sluice"
	Module     = Repository + "/sdk"
)

var (
	nameSyntax    = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$`)
	releaseSyntax = regexp.MustCompile(`^v\d+\.\d+\.\d+(-(alpha|beta|rc)\.\d+)?$`)
	moduleLine    = regexp.MustCompile(`(?m)^module ` + regexp.QuoteMeta(Module) + `$`)
)

// CheckName returns an error if a plugin cannot have a name: it is that of a folder, a Go module, an object, and an entry of the
// configuration.
func CheckName(name string) error {
	if !nameSyntax.MatchString(name) {
		return fmt.Errorf("%.80q is not a name of a plugin: want a lowercase letter, then at most 62 lowercase letters, digits and '-', not '-' at the end", name)
	}
	var value any
	if err := yaml.Unmarshal([]byte(name), &value); err != nil || value != any(name) {
		return fmt.Errorf("%q is not a name of a plugin: in YAML it is no string unless quoted", name)
	}
	return nil
}

// FindSDK returns the SDK for new plugins: that of the checkout dir if it is not "", else that of version, the version of sluice,
// if this is a release, else that of the checkout that contains the folder from.
func FindSDK(dir, version, from string) (SDK, error) {
	switch {
	case dir != "":
		abs, err := filepath.Abs(dir)
		if err != nil {
			return SDK{}, err
		}
		if !isCheckout(abs) {
			return SDK{}, fmt.Errorf("%s: not a checkout of %s", dir, Repository)
		}
		return inCheckout(abs), nil
	case releaseSyntax.MatchString(version):
		return SDK{Version: version}, nil
	}
	abs, err := filepath.Abs(from)
	if err != nil {
		return SDK{}, err
	}
	for ; !isCheckout(abs); abs = filepath.Dir(abs) {
		if abs == filepath.Dir(abs) {
			return SDK{}, fmt.Errorf("this build of sluice, %s, is no release, so it has no version of the SDK: name a checkout of %s", version, Repository)
		}
	}
	return inCheckout(abs), nil
}

func inCheckout(dir string) SDK { return SDK{Dir: filepath.Join(dir, "sdk")} }

func isCheckout(dir string) bool {
	text, err := os.ReadFile(filepath.Join(inCheckout(dir).Dir, "go.mod"))
	return err == nil && moduleLine.Match(text)
}

// Files returns the content of the files of a plugin, by slash-separated path.
func (p *Plugin) Files() (map[string][]byte, error) {
	if err := CheckName(p.Name); err != nil {
		return nil, err
	}
	l := &p.Lang
	data := struct {
		Name, Lang, Language, Tools, Version, SDKDir, SDK string
		Commands, Tests                                   []Command
		About                                             []About
		Empty                                             bool
	}{p.Name, l.Name, l.Title, l.Needs, p.SDK.Version, quoteModFile(p.SDK.Dir), p.aboutSDK(), l.Commands(p.Name), l.tests, l.About, p.Empty}
	if data.Version == "" {
		data.Version = "v0.0.0" // any: it is replaced
	}
	out := map[string][]byte{}
	roots := []string{"templates/common", "templates/" + l.Name}
	if p.Empty { // its files take the place of the others
		roots = append(roots, "templates/empty/common", "templates/empty/"+l.Name)
	}
	for _, root := range roots {
		err := fs.WalkDir(templates, root, func(file string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			t, err := template.ParseFS(templates, file)
			if err != nil {
				return err
			}
			var b bytes.Buffer
			if err := t.Execute(&b, data); err != nil {
				return err
			}
			name := strings.TrimSuffix(strings.TrimPrefix(file, root+"/"), ".tmpl")
			if name == "gitignore" || name == "npmrc" {
				name = "." + name
			}
			out[name] = b.Bytes()
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	switch l.Name {
	case "as":
		out["assembly/sluice.ts"] = []byte(assemblyscript.SDK)
	case "c":
		out["sluice.h"] = []byte(c.Header)
	case "rust":
		out["src/sluice.rs"] = []byte(rust.SDK)
	}
	return out, nil
}

// quoteModFile quotes a path for go.mod, if it has to be.
func quoteModFile(folder string) string {
	if strings.ContainsAny(folder, " \t\"'`()[]{},;") || strings.Contains(folder, "//") {
		return fmt.Sprintf("%q", folder)
	}
	return folder
}

// aboutSDK returns the section of the README on where the SDK comes from.
func (p *Plugin) aboutSDK() string {
	switch {
	case p.Lang.Name != "go":
		return ""
	case p.SDK.Version != "":
		return "\n## The SDK\n\n`go.mod` requires " + Module + " " + p.SDK.Version + ", the version of the `sluice` that made this folder. Run `go mod tidy` once to download it.\n"
	}
	return "\n## The SDK\n\n`go.mod` replaces " + Module + " by the folder `" + p.SDK.Dir + "`, because the `sluice` that made this folder is no release.\n" +
		"On another machine, name that of its checkout: `go mod edit -replace " + Module + "=DIR`. Once there is a release: `go mod edit -dropreplace\n" + Module + "`, then\n" +
		"`go get " + Module + "@latest`.\n"
}

// Create makes the folder dir/Name with the files of a plugin, and returns its path. It does not touch one that exists.
func (p *Plugin) Create(dir string) (folder string, err error) {
	files, err := p.Files()
	if err != nil {
		return "", err
	}
	folder = filepath.Join(dir, p.Name)
	if err := os.Mkdir(folder, 0o777); errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("%s exists already: choose another name, or remove it", folder)
	} else if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(folder))
		}
	}()
	for name, content := range files {
		if err := os.MkdirAll(filepath.Join(folder, filepath.FromSlash(path.Dir(name))), 0o777); err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(folder, filepath.FromSlash(name)), content, 0o666); err != nil {
			return "", err
		}
	}
	return folder, nil
}
