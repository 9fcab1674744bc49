package programs

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/sluice-proxy/sluice/deploy/image/oci"
)

// root is the files of an image, by name.
type root map[string]oci.File

func (r root) files() (out []oci.File) {
	for name, f := range r {
		f.Name = name
		out = append(out, f)
	}
	return out
}

func (r root) text(name, text string) { r[name] = oci.File{Mode: 0o644, Body: []byte(text)} }

func (r root) link(name, to string) { r[name] = oci.File{Link: to} }

// copy adds a file of this machine.
func (r root) copy(name, from string, mode int64) error {
	body, err := os.ReadFile(from)
	r[name] = oci.File{Mode: mode, Body: body}
	return err
}

// debian is the root of the extracted packages.
type debian string

// find returns the path of a file, with symbolic links followed inside of the root.
func (d debian) find(name string) (string, error) {
	at := filepath.Join(string(d), name)
	for {
		to, err := os.Readlink(at)
		if err != nil {
			_, err := os.Stat(at)
			return at, err
		}
		if filepath.IsAbs(to) {
			at = filepath.Join(string(d), to)
		} else {
			at = filepath.Join(filepath.Dir(at), to)
		}
	}
}

// programs adds programs of Debian to usr/bin, with the shared libraries that they load.
func (r root) programs(d debian, names ...string) error {
	for _, n := range names {
		from, err := d.find("usr/bin/" + n)
		if errors.Is(err, fs.ErrNotExist) {
			from, err = d.find("usr/sbin/" + n)
		}
		if err == nil {
			err = r.loaded(d, "usr/bin/"+n, from)
		}
		if err != nil {
			return fmt.Errorf("program %s: %w", n, err)
		}
	}
	return nil
}

// iptables adds iptables on nf_tables, with its matches and targets.
func (r root) iptables(d debian) error {
	const program = "xtables-nft-multi"
	if err := r.programs(d, program); err != nil {
		return err
	}
	for _, name := range []string{"iptables", "ip6tables", "iptables-nft", "ip6tables-nft"} {
		for _, does := range []string{"", "-save", "-restore"} {
			r.link("usr/bin/"+name+does, program)
		}
	}
	found, err := filepath.Glob(filepath.Join(string(d), "usr/lib/*-linux-gnu/xtables/lib*.so"))
	for _, from := range found {
		name, outside := filepath.Rel(string(d), from)
		err = errors.Join(err, outside, r.loaded(d, name, from))
	}
	return err
}

// tree adds a folder of this machine, with what scripts in it may run.
func (r root) tree(name, from string) error {
	return filepath.WalkDir(from, func(at string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		rel, err := filepath.Rel(from, at)
		if err != nil {
			return err
		}
		return r.copy(path.Join(name, filepath.ToSlash(rel)), at, 0o755)
	})
}

// loaded adds a program or a library, and what it needs.
func (r root) loaded(d debian, name, from string) error {
	if _, ok := r[name]; ok && r[name].Link == "" {
		return nil
	}
	if err := r.copy(name, from, 0o755); err != nil {
		return err
	}
	f, err := elf.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		text := make([]byte, p.Filesz)
		if _, err := p.ReadAt(text, 0); err != nil {
			return err
		}
		loader := strings.Trim(string(text), "/\x00")
		if strings.HasPrefix(loader, "lib/") {
			loader = "usr/" + loader
		}
		if err := r.library(d, loader); err != nil {
			return err
		}
	}
	needed, err := f.ImportedLibraries()
	if err != nil && !errors.Is(err, elf.ErrNoSymbols) {
		return err
	}
	triplet, err := d.triplet()
	if err != nil {
		return err
	}
	for _, lib := range needed {
		if err := r.library(d, path.Join("usr/lib", triplet, lib), path.Join("usr/lib", lib)); err != nil {
			return err
		}
	}
	return nil
}

// library adds the first of several files that is there.
func (r root) library(d debian, names ...string) error {
	var all error
	for _, n := range names {
		from, err := d.find(n)
		if err == nil {
			return r.loaded(d, n, from)
		}
		all = errors.Join(all, err)
	}
	return all
}

// triplet is the folder of libraries below usr/lib.
func (d debian) triplet() (string, error) {
	found, err := filepath.Glob(filepath.Join(string(d), "usr/lib/*-linux-gnu/libc.so.6"))
	if err != nil || len(found) == 0 {
		return "", fmt.Errorf("no C library in %s", d)
	}
	return filepath.Base(filepath.Dir(found[0])), nil
}
