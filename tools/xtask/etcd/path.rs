//! Prints where this version's etcd binary is. Shared by the manifests beside it.

fn main() -> Result<(), etcd_bin_vendored::ArchitectureNotSupported> {
    println!("{}", etcd_bin_vendored::etcd_bin_path()?.display());
    Ok(())
}
