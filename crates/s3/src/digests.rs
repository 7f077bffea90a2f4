//! Sums of bytes: the MD5 that is an `ETag`, and the sums that clients ask for.

use bytes::Bytes;
use s3s::crypto::{Checksum as _, Crc32, Crc32c, Crc64Nvme, Md5, Sha1, Sha256};
use s3s::dto::{ChecksumAlgorithm, ChecksumType};
use s3s::{S3Result, s3_error};

use crate::records::SumRecord;

/// How bytes are summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Algorithm {
    Crc32 = 1,
    Crc32c = 2,
    Crc64Nvme = 3,
    Sha1 = 4,
    Sha256 = 5,
}

impl Algorithm {
    pub(crate) const ALL: [Self; 5] = [Self::Crc32, Self::Crc32c, Self::Crc64Nvme, Self::Sha1, Self::Sha256];

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.name() == name)
    }

    /// From a header or a trailer such as `x-amz-checksum-crc32`.
    pub(crate) fn from_header(name: &str) -> Option<Self> {
        let name = name.strip_prefix("x-amz-checksum-")?;
        Self::ALL.into_iter().find(|known| known.name().eq_ignore_ascii_case(name))
    }

    pub(crate) fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|known| *known as u32 == number)
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Crc32 => ChecksumAlgorithm::CRC32,
            Self::Crc32c => ChecksumAlgorithm::CRC32C,
            Self::Crc64Nvme => ChecksumAlgorithm::CRC64NVME,
            Self::Sha1 => ChecksumAlgorithm::SHA1,
            Self::Sha256 => ChecksumAlgorithm::SHA256,
        }
    }

    /// How many bytes a sum has.
    pub(crate) const fn bytes(self) -> usize {
        match self {
            Self::Crc32 | Self::Crc32c => 4,
            Self::Crc64Nvme => 8,
            Self::Sha1 => 20,
            Self::Sha256 => 32,
        }
    }

    /// Whether the sum of a whole follows from those of its parts.
    const fn combined(self) -> Option<crc_fast::CrcAlgorithm> {
        match self {
            Self::Crc32 => Some(crc_fast::CrcAlgorithm::Crc32IsoHdlc),
            Self::Crc32c => Some(crc_fast::CrcAlgorithm::Crc32Iscsi),
            Self::Crc64Nvme => Some(crc_fast::CrcAlgorithm::Crc64Nvme),
            Self::Sha1 | Self::Sha256 => None,
        }
    }

    /// Whether an upload in several parts can have a sum of all its bytes.
    pub(crate) const fn allows_full_object(self) -> bool {
        self.combined().is_some()
    }

    /// Whether an upload in several parts can have a sum of the sums of its parts.
    pub(crate) const fn allows_composite(self) -> bool {
        !matches!(self, Self::Crc64Nvme)
    }

    /// A sum that a client gave.
    pub(crate) fn parse(self, text: &str) -> S3Result<Bytes> {
        let value = base64_simd::STANDARD.decode_to_vec(text.trim()).ok();
        value.filter(|value| value.len() == self.bytes()).map(Bytes::from).ok_or_else(|| {
            s3_error!(
                InvalidRequest,
                "Value for x-amz-checksum-{} header is invalid.",
                self.name().to_lowercase()
            )
        })
    }
}

impl SumRecord {
    pub(crate) const fn full(algorithm: Algorithm, value: Bytes) -> Self {
        Self { algorithm: algorithm as u32, value, composite_of: 0 }
    }

    pub(crate) fn algorithm(&self) -> Option<Algorithm> {
        Algorithm::from_number(self.algorithm)
    }

    /// As headers and documents show it.
    pub(crate) fn text(&self) -> String {
        let mut text = base64_simd::STANDARD.encode_to_string(&self.value);
        if self.composite_of > 0 {
            text.push_str(&format!("-{}", self.composite_of));
        }
        text
    }

    pub(crate) fn checksum_type(&self) -> ChecksumType {
        ChecksumType::from_static(match self.composite_of {
            0 => ChecksumType::FULL_OBJECT,
            _ => ChecksumType::COMPOSITE,
        })
    }
}

/// The sum of the sums of parts, in their order.
pub(crate) fn composite_sum<'a>(
    algorithm: Algorithm,
    parts: impl ExactSizeIterator<Item = &'a [u8]>,
) -> SumRecord {
    let composite_of = u32::try_from(parts.len()).unwrap_or(u32::MAX);
    let mut hasher = SumHasher::new(algorithm);
    parts.for_each(|part| hasher.update(part));
    SumRecord { algorithm: algorithm as u32, value: hasher.finish(), composite_of }
}

/// The sum of all bytes of parts, in their order, from the sum and the size of each. `None` where it does not follow.
pub(crate) fn combined_sum<'a>(
    algorithm: Algorithm,
    parts: impl Iterator<Item = (&'a [u8], u64)>,
) -> Option<SumRecord> {
    let combined = algorithm.combined()?;
    let number = |sum: &[u8]| sum.iter().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
    let mut whole: Option<u64> = None;
    for (sum, bytes) in parts {
        whole = Some(match whole {
            None => number(sum),
            Some(before) => crc_fast::checksum_combine(combined, before, number(sum), bytes),
        });
    }
    let bytes = whole?.to_be_bytes();
    Some(SumRecord::full(algorithm, Bytes::copy_from_slice(&bytes[8 - algorithm.bytes()..])))
}

/// Sums bytes in one way.
pub(crate) enum SumHasher {
    Crc32(Crc32),
    Crc32c(Crc32c),
    Crc64Nvme(Crc64Nvme),
    Sha1(Sha1),
    Sha256(Sha256),
}

impl SumHasher {
    pub(crate) fn new(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::Crc32 => Self::Crc32(Crc32::new()),
            Algorithm::Crc32c => Self::Crc32c(Crc32c::new()),
            Algorithm::Crc64Nvme => Self::Crc64Nvme(Crc64Nvme::new()),
            Algorithm::Sha1 => Self::Sha1(Sha1::new()),
            Algorithm::Sha256 => Self::Sha256(Sha256::new()),
        }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Crc32(hasher) => hasher.update(bytes),
            Self::Crc32c(hasher) => hasher.update(bytes),
            Self::Crc64Nvme(hasher) => hasher.update(bytes),
            Self::Sha1(hasher) => hasher.update(bytes),
            Self::Sha256(hasher) => hasher.update(bytes),
        }
    }

    pub(crate) fn finish(self) -> Bytes {
        match self {
            Self::Crc32(hasher) => Bytes::copy_from_slice(hasher.finalize().as_ref()),
            Self::Crc32c(hasher) => Bytes::copy_from_slice(hasher.finalize().as_ref()),
            Self::Crc64Nvme(hasher) => Bytes::copy_from_slice(hasher.finalize().as_ref()),
            Self::Sha1(hasher) => Bytes::copy_from_slice(hasher.finalize().as_ref()),
            Self::Sha256(hasher) => Bytes::copy_from_slice(hasher.finalize().as_ref()),
        }
    }
}

/// Sums the bytes of a body as they pass: always by MD5, and by what was asked for.
pub(crate) struct BodyHasher {
    md5: Md5,
    sum: Option<(Algorithm, SumHasher)>,
}

/// The sums of a body.
pub(crate) struct BodySums {
    pub(crate) md5: [u8; 16],
    pub(crate) sum: Option<SumRecord>,
}

impl BodyHasher {
    pub(crate) fn new(algorithm: Option<Algorithm>) -> Self {
        Self { md5: Md5::new(), sum: algorithm.map(|algorithm| (algorithm, SumHasher::new(algorithm))) }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.md5.update(bytes);
        if let Some((_, hasher)) = &mut self.sum {
            hasher.update(bytes);
        }
    }

    pub(crate) fn finish(self) -> BodySums {
        BodySums {
            md5: self.md5.finalize(),
            sum: self.sum.map(|(algorithm, hasher)| SumRecord::full(algorithm, hasher.finish())),
        }
    }
}

/// The MD5 of bytes.
pub(crate) fn md5(bytes: &[u8]) -> [u8; 16] {
    let mut hasher = Md5::new();
    hasher.update(bytes);
    hasher.finalize()
}

/// What a client says of the body that it sends.
#[derive(Default)]
pub(crate) struct Promised {
    pub(crate) md5: Option<[u8; 16]>,
    pub(crate) algorithm: Option<Algorithm>,
    /// `None` while it is still to come, in a trailer, or when the gateway is to sum by itself.
    pub(crate) sum: Option<Bytes>,
    pub(crate) is_in_trailer: bool,
}

impl Promised {
    /// Reads what the headers promise. `sums` are the headers with a sum in them.
    pub(crate) fn of(headers: &http::HeaderMap, sums: [(Algorithm, Option<&str>); 5]) -> S3Result<Self> {
        let md5 = headers
            .get("content-md5")
            .map(|text| {
                let value = base64_simd::STANDARD.decode_to_vec(text.as_bytes()).ok();
                value
                    .and_then(|value| <[u8; 16]>::try_from(value).ok())
                    .ok_or_else(|| s3_error!(InvalidDigest, "The Content-MD5 you specified is not valid."))
            })
            .transpose()?;
        let mut promised = Self { md5, ..Self::default() };
        for (algorithm, text) in sums {
            let Some(text) = text else { continue };
            if promised.algorithm.is_some() {
                return Err(several());
            }
            promised.algorithm = Some(algorithm);
            promised.sum = Some(algorithm.parse(text)?);
        }
        for trailer in headers.get_all("x-amz-trailer") {
            let names =
                trailer.to_str().unwrap_or_default().split(',').map(|name| name.trim().to_lowercase());
            for name in names {
                let algorithm = Algorithm::from_header(&name).ok_or_else(|| {
                    s3_error!(
                        InvalidRequest,
                        "The value specified in the x-amz-trailer header is not supported."
                    )
                })?;
                if promised.algorithm.is_some() {
                    return Err(several());
                }
                promised.algorithm = Some(algorithm);
                promised.is_in_trailer = true;
            }
        }
        if let Some(named) = headers.get("x-amz-sdk-checksum-algorithm").and_then(|value| value.to_str().ok())
        {
            let named = Algorithm::from_name(&named.to_uppercase()).ok_or_else(|| {
                s3_error!(InvalidRequest, "Value for x-amz-sdk-checksum-algorithm header is invalid.")
            })?;
            match promised.algorithm {
                Some(algorithm) if algorithm == named => {}
                Some(_) => {
                    return Err(s3_error!(
                        InvalidRequest,
                        "Value for x-amz-sdk-checksum-algorithm header is invalid."
                    ));
                }
                None => {
                    return Err(s3_error!(
                        InvalidRequest,
                        "x-amz-sdk-checksum-algorithm specified, but no corresponding x-amz-checksum-* or x-amz-trailer headers were found."
                    ));
                }
            }
        }
        Ok(promised)
    }

    /// Takes the sum out of the trailers, which are there once the body was read to its end.
    pub(crate) fn hear_trailers(&mut self, trailers: Option<&http::HeaderMap>) -> S3Result<()> {
        let (Some(algorithm), true) = (self.algorithm, self.is_in_trailer) else { return Ok(()) };
        let name = format!("x-amz-checksum-{}", algorithm.name().to_lowercase());
        let text = trailers.and_then(|trailers| trailers.get(&name)).and_then(|value| value.to_str().ok());
        let Some(text) = text else {
            return Err(crate::errors::custom(
                "MalformedTrailerError",
                http::StatusCode::BAD_REQUEST,
                format!("The request promised the trailer {name} and did not send it."),
            ));
        };
        self.sum = Some(algorithm.parse(text)?);
        Ok(())
    }

    /// Whether the body is what was promised.
    pub(crate) fn check(&self, sums: &BodySums) -> S3Result<()> {
        if self.md5.is_some_and(|md5| md5 != sums.md5) {
            return Err(s3_error!(
                BadDigest,
                "The Content-MD5 you specified did not match what we received."
            ));
        }
        if let (Some(promised), Some(sum)) = (&self.sum, &sums.sum)
            && *promised != sum.value
        {
            let name = self.algorithm.map_or("", Algorithm::name);
            return Err(s3_error!(
                BadDigest,
                "The {name} you specified did not match the calculated checksum."
            ));
        }
        Ok(())
    }
}

fn several() -> s3s::S3Error {
    s3_error!(
        InvalidRequest,
        "Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed."
    )
}

/// The sums that an input or a part of it gives.
macro_rules! given_sums {
    ($input:expr) => {{
        use $crate::digests::Algorithm;
        [
            (Algorithm::Crc32, $input.checksum_crc32.as_deref()),
            (Algorithm::Crc32c, $input.checksum_crc32c.as_deref()),
            (Algorithm::Crc64Nvme, $input.checksum_crc64nvme.as_deref()),
            (Algorithm::Sha1, $input.checksum_sha1.as_deref()),
            (Algorithm::Sha256, $input.checksum_sha256.as_deref()),
        ]
    }};
}

/// Shows a sum in an output.
macro_rules! show_sum {
    ($output:expr, $sum:expr) => {
        if let Some(sum) = $sum {
            use $crate::digests::Algorithm;
            let text = Some(sum.text());
            match sum.algorithm() {
                Some(Algorithm::Crc32) => $output.checksum_crc32 = text,
                Some(Algorithm::Crc32c) => $output.checksum_crc32c = text,
                Some(Algorithm::Crc64Nvme) => $output.checksum_crc64nvme = text,
                Some(Algorithm::Sha1) => $output.checksum_sha1 = text,
                Some(Algorithm::Sha256) => $output.checksum_sha256 = text,
                None => {}
            }
        }
    };
}

pub(crate) use {given_sums, show_sum};

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(algorithm: Algorithm, bytes: &[u8]) -> Bytes {
        let mut hasher = SumHasher::new(algorithm);
        hasher.update(bytes);
        hasher.finish()
    }

    #[test]
    fn the_sum_of_a_whole_follows_from_those_of_its_parts() {
        let text = b"The quick brown fox jumps over the lazy dog";
        for algorithm in Algorithm::ALL {
            let cuts = [&text[..3], &text[3..3], &text[3..20], &text[20..]];
            let sums: Vec<_> = cuts.iter().map(|cut| (sum(algorithm, cut), cut.len() as u64)).collect();
            let whole = combined_sum(algorithm, sums.iter().map(|(sum, bytes)| (&sum[..], *bytes)));
            let expected =
                algorithm.allows_full_object().then(|| SumRecord::full(algorithm, sum(algorithm, text)));
            assert_eq!(whole, expected, "{algorithm:?}");
            assert_eq!(sum(algorithm, text).len(), algorithm.bytes());
        }
    }

    #[test]
    fn sums_are_those_that_others_compute() {
        let digits = b"123456789";
        assert_eq!(&sum(Algorithm::Crc32, digits)[..], 0xcbf4_3926_u32.to_be_bytes());
        assert_eq!(&sum(Algorithm::Crc32c, digits)[..], 0xe306_9283_u32.to_be_bytes());
        assert_eq!(&sum(Algorithm::Crc64Nvme, digits)[..], 0xae8b_1486_0a79_9888_u64.to_be_bytes());
        assert_eq!(crate::text::hex(&md5(b"")), "d41d8cd98f00b204e9800998ecf8427e");
    }
}
