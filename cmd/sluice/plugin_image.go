package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/node/agent/plugins"
	"github.com/sluice-proxy/sluice/host/plugin/imageref"
	"github.com/sluice-proxy/sluice/host/plugin/registry"
	"github.com/sluice-proxy/sluice/host/plugin/signature"
	"github.com/sluice-proxy/sluice/host/plugin/wasm"
	"github.com/sluice-proxy/sluice/host/plugin/wasm/meter"
	"github.com/sluice-proxy/sluice/host/util/printable"
	"github.com/sluice-proxy/sluice/host/util/safefile"
)

// registryFlags are how registries are asked by a user.
type registryFlags struct{ registry.Settings }

func (f *registryFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.DockerConfig, "docker-config", "", "file with credentials, as docker login writes it (default: $DOCKER_CONFIG/config.json, or ~/.docker/config.json)")
	cmd.Flags().StringVar(&f.CAFile, "ca-file", "", "file with certificates of authorities that are trusted beside the system's")
	cmd.Flags().StringSliceVar(&f.PlainHTTP, "plain-http", nil, "registries that are asked without TLS; those on loopback addresses need not be listed")
}

// client returns a client with the user's credentials.
func (f *registryFlags) client() (*registry.Client, error) {
	o := registry.Options{
		Settings: f.Settings, UserAgent: "sluice/" + buildVersion(), Names: registry.Names{DockerConfig: "--docker-config", CAFile: "--ca-file", PlainHTTP: "--plain-http"},
	}
	if o.DockerConfig == "" {
		o.DockerConfig = userDockerConfig()
	}
	return registry.NewClient(o)
}

// userDockerConfig returns the file that docker would read, "" if there is none.
func userDockerConfig() string {
	dir := os.Getenv("DOCKER_CONFIG")
	if home, err := os.UserHomeDir(); dir == "" && err == nil {
		dir = filepath.Join(home, ".docker")
	}
	file := filepath.Join(dir, "config.json")
	if _, err := os.Stat(file); dir == "" || err != nil {
		return ""
	}
	return file
}

// resolve calls read with the reference by digest of an image that is named by digest or tag, and returns it.
func (f *registryFlags) resolve(ctx context.Context, image string, read func(*registry.Client, imageref.Ref) error) (ref imageref.Ref, err error) {
	client, err := f.client()
	if err != nil {
		return ref, err
	}
	ref, err = imageref.Parse(image)
	if tag, ok := imageref.IsTag(err); ok {
		ref, err = client.Resolve(ctx, tag)
	}
	if err != nil {
		return ref, err
	}
	return ref, read(client, ref)
}

// pull pulls an image by digest, or by tag, and returns its reference by digest.
func (f *registryFlags) pull(ctx context.Context, image string) (ref imageref.Ref, module []byte, err error) {
	ref, err = f.resolve(ctx, image, func(client *registry.Client, ref imageref.Ref) error {
		a, err := client.Pull(ctx, ref)
		module = a.Module
		return err
	})
	return ref, module, err
}

// isImage reports whether an argument is an image, and not a file: it begins with a registry, and there is no such file.
func isImage(arg string) bool {
	_, err := imageref.Parse(arg)
	_, tag := imageref.IsTag(err)
	if err != nil && !tag {
		return false
	}
	_, err = os.Stat(arg)
	return errors.Is(err, os.ErrNotExist)
}

// readModule reads a module from a file, or from a registry.
func readModule(ctx context.Context, arg string) ([]byte, error) {
	if !isImage(arg) {
		return plugins.ReadModuleFile(arg)
	}
	_, module, err := new(registryFlags).pull(ctx, arg)
	return module, err
}

func newPluginPushCommand() *cobra.Command {
	var flags registryFlags
	var generic bool
	var sign, output string
	var namespaces []string
	cmd := &cobra.Command{
		Use:   "push FILE REGISTRY/NAME:TAG",
		Short: "Push a plugin to a registry",
		Long: `Pushes a WebAssembly module, which may be compressed with gzip, to an OCI registry, in the layout of the CNCF for WebAssembly artefacts. Prints the
ServicePlugin that registers it, for 'kubectl apply -f -', or with -o ref the reference by digest that plugins[].image of the
configuration needs. The same module has the same digest in every registry. With --sign, it also pushes signatures,
in both formats of cosign, which plugins[].verify and 'cosign verify --key' check.`,
		Example: "  sluice plugin push near.wasm registry.example.com/acme/near:v1 --use shop | kubectl apply -f -",
		Args:    exactArgs("WebAssembly module", "image"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkFlag("output", output, "yaml", "ref"); err != nil {
				return err
			}
			tag, err := parseTag(args[1])
			if err != nil {
				return usageError{fmt.Errorf("plugin push: %w", err)}
			}
			module, err := plugins.ReadModuleFile(args[0])
			if err != nil {
				return fmt.Errorf("plugin push: %w", err)
			}
			if _, _, err := meter.Rewrite(module, wasm.DefaultLimits().Module); err != nil { // no node would load it
				return fmt.Errorf("plugin push: %s: %w", args[0], err)
			}
			var key *signature.PrivateKey
			if sign != "" {
				if key, err = readPrivateKey(sign); err != nil {
					return fmt.Errorf("plugin push: --sign: %w", err)
				}
			}
			client, err := flags.client()
			if err != nil {
				return fmt.Errorf("plugin push: %w", err)
			}
			config := registry.WasmConfig
			if generic {
				config = registry.GenericConfig
			}
			ref, err := client.Push(cmd.Context(), tag, module, config)
			if err != nil {
				return fmt.Errorf("plugin push: %s: %w", args[0], err)
			}
			if key != nil {
				if err := signImage(cmd.Context(), client, key, ref); err != nil {
					return fmt.Errorf("plugin push: the image is there, but not its signature: %w", err)
				}
			}
			if output == "ref" {
				_, err = fmt.Fprintln(cmd.OutOrStdout(), printable.Escape(ref.String()))
				return err
			}
			return printPluginObject(cmd.OutOrStdout(), ref, module, key, namespaces)
		},
	}
	flags.register(cmd)
	cmd.Flags().StringVarP(&output, "output", "o", "yaml", "yaml: the ServicePlugin to apply; ref: the reference by digest")
	cmd.Flags().StringSliceVar(&namespaces, "use", nil, "namespaces whose ServicePolicies may use the plugin, with all its settings (default: only ClusterServicePolicies may)")
	cmd.Flags().StringVar(&sign, "sign", "", "file with a private key in PEM, ed25519 or ECDSA P-256, without a password, to sign the image with")
	cmd.Flags().BoolVar(&generic, "generic-config", false, "give the configuration the media type of container images, for registries that refuse "+registry.WasmConfig)
	return cmd
}

// signImage adds signatures of a key to an image, in both formats of cosign, unless it has them. One is enough for nodes, so a
// registry may refuse bundles, or to list them.
func signImage(ctx context.Context, client *registry.Client, key *signature.PrivateKey, ref imageref.Ref) error {
	all, noBundle := client.Signatures(ctx, ref)
	bundles, simple := signature.Set{}, signature.Set{}
	for _, s := range all.Signatures {
		if s.Type == "" {
			simple.Signatures = append(simple.Signatures, s)
		} else {
			bundles.Signatures = append(bundles.Signatures, s)
		}
	}
	if key.Public().Verify(ref.Digest, simple) != nil {
		s, err := key.Sign(ref.Name(), ref.Digest)
		if err == nil {
			err = client.PushSignature(ctx, ref, s)
		}
		if err != nil {
			return err
		}
	}
	if noBundle == nil && key.Public().Verify(ref.Digest, bundles) != nil {
		bundle, err := key.SignBundle(ref.Digest)
		if err != nil {
			return err
		}
		noBundle = client.PushBundle(ctx, ref, bundle)
	}
	if noBundle != nil {
		warn("plugin push: signed in cosign's older format only: " + noBundle.Error())
	}
	return nil
}

func readPrivateKey(file string) (*signature.PrivateKey, error) {
	text, err := safefile.Read(file, 64<<10)
	if err != nil {
		return nil, err
	}
	key, err := signature.ParsePrivateKey(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return key, nil
}

// parseTag parses REGISTRY/NAME:TAG.
func parseTag(text string) (*imageref.TagError, error) {
	_, err := imageref.Parse(text)
	tag, ok := imageref.IsTag(err)
	switch {
	case err == nil:
		return nil, fmt.Errorf("%s has a digest: want REGISTRY/NAME:TAG", text)
	case !ok:
		return nil, err
	case tag.Tag == "":
		return nil, fmt.Errorf("%s has no tag: want REGISTRY/NAME:TAG", text)
	}
	return tag, nil
}

func newPluginPullCommand() *cobra.Command {
	var flags registryFlags
	var file string
	var force bool
	cmd := &cobra.Command{
		Use:   "pull IMAGE",
		Short: "Pull a plugin from a registry",
		Long: `Pulls the WebAssembly module of an image, REGISTRY/NAME:TAG or REGISTRY/NAME@sha256:…, into a file that does not exist yet; with --force, one that exists is
replaced, and stays as it is if the pull fails. Prints the reference by digest, the digest of the module, and the file.`,
		Example: "  sluice plugin pull registry.example.com/acme/near:v1 --file near.wasm",
		Args:    oneArg("image"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var module []byte
			ref, err := flags.resolve(cmd.Context(), args[0], func(client *registry.Client, ref imageref.Ref) error {
				if file == "" {
					file = ref.Repository[strings.LastIndexByte(ref.Repository, '/')+1:] + ".wasm"
				}
				if _, err := os.Lstat(file); !force && !errors.Is(err, os.ErrNotExist) { // before the download
					return cmp.Or(err, error(&os.PathError{Op: "open", Path: file, Err: unix.EEXIST}))
				}
				a, err := client.Pull(cmd.Context(), ref)
				module = a.Module
				return err
			})
			if err != nil {
				return fmt.Errorf("plugin pull: %w", err)
			}
			if err := writeModule(file, module, force); err != nil {
				return fmt.Errorf("plugin pull: %w", err)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\n%s  %s\n", printable.Escape(ref.String()), digestOf(module), printable.Escape(file))
			return err
		},
	}
	flags.register(cmd)
	cmd.Flags().StringVar(&file, "file", "", "file to write (default: the last part of the image's name, and .wasm)")
	cmd.Flags().BoolVar(&force, "force", false, "replace the file if it exists")
	return cmd
}

// writeModule writes a module into a new file, or with replace also in place of one: readers see all of the old file or all of
// the new one.
func writeModule(file string, module []byte, replace bool) error {
	open := func() (*os.File, error) { return os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644) }
	if replace {
		open = func() (*os.File, error) { return os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+"-*") }
	}
	out, err := open()
	if err != nil {
		return err
	}
	_, err = out.Write(module)
	if replace {
		err = cmp.Or(err, out.Chmod(0o644))
	}
	err = errors.Join(err, out.Close())
	if replace && err == nil {
		err = os.Rename(out.Name(), file)
	}
	if replace && err != nil {
		os.Remove(out.Name())
	}
	return err
}

func newPluginDigestCommand() *cobra.Command {
	var flags registryFlags
	cmd := &cobra.Command{
		Use:   "digest FILE|IMAGE",
		Short: "Print the digest of a plugin, for the configuration",
		Long: `Prints for a file the digest of its module, unpacked if it is compressed, as plugins[].digest has it; for the tag of an image its reference by digest, as
plugins[].image has it.`,
		Example: "  sluice plugin digest near.wasm.gz\n  sluice plugin digest registry.example.com/acme/near:v1",
		Args:    oneArg("WebAssembly module or image"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if isImage(args[0]) {
				ref, err := flags.resolve(cmd.Context(), args[0], func(client *registry.Client, ref imageref.Ref) error { return client.Check(cmd.Context(), ref) })
				if err != nil {
					return fmt.Errorf("plugin digest: %w", err)
				}
				_, err = fmt.Fprintln(cmd.OutOrStdout(), printable.Escape(ref.String()))
				return err
			}
			module, err := plugins.ReadModuleFile(args[0])
			if err != nil {
				return fmt.Errorf("plugin digest: %w", err)
			}
			if err := registry.CheckModule(module); err != nil {
				return fmt.Errorf("plugin digest: %s: %w", printable.Escape(args[0]), err)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), digestOf(module))
			return err
		},
	}
	flags.register(cmd)
	return cmd
}

// digestOf returns the digest of a module as plugins[].digest has it.
func digestOf(module []byte) string {
	sum := sha256.Sum256(module)
	return "sha256:" + hex.EncodeToString(sum[:])
}
