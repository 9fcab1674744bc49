package vm

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// debian is the release that the arm64 kernel is from.
const debian = "bookworm"

// useArm64 makes apt look for packages for arm64, in lists of its own.
func (b *builder) useArm64(ctx context.Context) error {
	dir := filepath.Join(b.dir, "apt")
	sources := ""
	for _, s := range []string{"debian " + debian, "debian-security " + debian + "-security"} {
		sources += "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/" + s + " main\n"
	}
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "lists", "partial"), 0o755), os.MkdirAll(filepath.Join(dir, "archives", "partial"), 0o755),
		os.WriteFile(filepath.Join(dir, "sources.list"), []byte(sources), 0o644), os.WriteFile(filepath.Join(dir, "status"), nil, 0o644)); err != nil {
		return err
	}
	for _, option := range []string{"APT::Architecture=arm64", "APT::Architectures=arm64", "Dir::Etc::sourcelist=" + filepath.Join(dir, "sources.list"),
		"Dir::Etc::sourceparts=-", "Dir::State::lists=" + filepath.Join(dir, "lists"), "Dir::State::status=" + filepath.Join(dir, "status"), "Dir::Cache=" + dir} {
		b.apt = append(b.apt, "-o", option)
	}
	return b.run(ctx, slices.Concat([]string{"apt-get"}, b.apt, []string{"update"})...)
}

// unpack leaves Debian's kernel, its modules in the order in which they are loaded, and programs in the folder "kernel" of done.
func (b *builder) unpack(ctx context.Context, series, version string) error {
	out, err := exec.CommandContext(ctx, "apt-cache", slices.Concat(b.apt, []string{"depends", "linux-image-" + series})...).Output()
	if err != nil {
		return fmt.Errorf("apt-cache depends: %w", err)
	}
	_, image, _ := strings.Cut(string(out), "Depends: ")
	image, _, _ = strings.Cut(image, "\n")
	if err := b.download(ctx, filepath.Join(b.dir, "image"), image+"="+version); err != nil {
		return err
	}
	kernel := filepath.Join(b.done, "kernel")
	if err := b.download(ctx, filepath.Join(kernel, "programs"), listed(series, "package")...); err != nil {
		return err
	}
	boot, err := filepath.Glob(filepath.Join(b.dir, "image", "boot", "vmlinuz-*"))
	if err != nil || len(boot) != 1 {
		return fmt.Errorf("%s has the kernels %v, %w", image, boot, err)
	}
	if err := b.run(ctx, "cp", boot[0], filepath.Join(kernel, "linux")); err != nil {
		return err
	}
	files, err := inOrder(filepath.Join(b.dir, "image", "lib", "modules"), listed(series, "module"))
	if err == nil {
		err = os.Mkdir(filepath.Join(kernel, modulesDir), 0o755)
	}
	for i, file := range files {
		if err == nil {
			err = b.run(ctx, "cp", file, filepath.Join(kernel, modulesDir, fmt.Sprintf("%03d-%s", i, filepath.Base(file))))
		}
	}
	return err
}

// listed returns the names of a kind in a series' list.
func listed(series, kind string) (names []string) {
	for _, line := range options(series) {
		if name, ok := strings.CutPrefix(line, kind+" "); ok {
			names = append(names, name)
		}
	}
	return names
}

// inOrder returns the files of modules and of those that they need, each after the ones that it needs, without those that are
// part of the kernel.
func inOrder(dir string, wanted []string) (order []string, err error) {
	files := map[string]string{} // "": part of the kernel
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if d.Name() == "modules.builtin" {
			text, err := os.ReadFile(path)
			for name := range strings.FieldsSeq(string(text)) {
				files[moduleName(name)] = ""
			}
			return err
		}
		if filepath.Ext(path) == ".ko" {
			files[moduleName(path)] = path
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	var add func(name string) error
	add = func(name string) error {
		file, ok := files[name]
		if !ok {
			return fmt.Errorf("the kernel has no module %s", name)
		}
		if seen[name] || file == "" {
			return nil
		}
		seen[name] = true
		needs, err := dependencies(file)
		for _, other := range needs {
			err = errors.Join(err, add(moduleName(other)))
		}
		order = append(order, file)
		return err
	}
	for _, name := range wanted {
		err = errors.Join(err, add(name))
	}
	return order, err
}

func moduleName(path string) string {
	return strings.ReplaceAll(strings.TrimSuffix(filepath.Base(path), ".ko"), "-", "_")
}

// dependencies returns the names of the modules that a module needs.
func dependencies(file string) ([]string, error) {
	f, err := elf.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	about := f.Section(".modinfo")
	if about == nil {
		return nil, fmt.Errorf("%s is not a module", file)
	}
	text, err := about.Data()
	for line := range strings.SplitSeq(string(text), "\x00") {
		if list, ok := strings.CutPrefix(line, "depends="); ok && list != "" {
			return strings.Split(list, ","), err
		}
	}
	return nil, err
}
