//! Prints the path of this version's etcd binary. The manifests beside this file share it.

fn main() -> Result<(), etcd_bin_vendored::ArchitectureNotSupported> {
    println!("{}", etcd_bin_vendored::etcd_bin_path()?.display());
    Ok(())
}
